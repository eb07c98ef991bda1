"""What `echomq demo` is made of.

example   where the portal of examples/portal lies, in a checkout and in an installed package
children  the processes that the demo starts, none of which outlives it
crew      the workers: started, killed, frozen, replaced
naive     the list queue beside them, and its consumer
story     what is on the screen
play      all of it together, up to the audit
"""
