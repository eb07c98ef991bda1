-- The scripts as the server runs them: Lua 5.1 with the globals of its sandbox. `make lua` lints the assembled scripts, so
-- with the names that the loader generates from their headers.
std = "lua51"
read_globals = { "KEYS", "ARGV", "redis", "cjson", "cmsgpack", "struct", "bit" }
max_line_length = false -- of the generated lines; that of the source files is looked at separately
ignore = {
  "431", -- a library's parameter may be called as a name of the script: it takes everything as an argument
  "211/base", "211/clock_given", "211/resent", -- every script gets the prelude's names, few need all
}
