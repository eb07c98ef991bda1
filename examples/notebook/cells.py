"""A notebook as its cells, which Jupyter, VS Code and others open as such. An event loop runs in the thread of each cell."""

# %% The tasks stand in a module, which a worker needs as well: `echomq worker tasks:app`
from tasks import app, measure

from echomq import Every

# %% Adding, and waiting for the result: without await
jobs = measure.sync.map(range(20))
sum(job.result(timeout=30) for job in jobs)

# %% A table of the queue
queue = app.sync.queue("measuring")
{state: count for state, count in queue.counts().items() if count}

# %% A long list, page by page, as it is read
[(job.id, job.return_value) for job in queue.jobs("completed")][:3]

# %% A schedule
schedule = app.sync.scheduler("measuring").upsert("hourly", Every(3600, offset=60), measure.spec(0))
schedule.next_run

# %% The async calls are there too, where a notebook allows await at the top
job = await measure.enqueue(7)
await job.result(timeout=30)

# %% Nothing need be closed. What is not wanted any more can be removed
app.sync.scheduler("measuring").remove("hourly")
queue.admin.obliterate(force=True)
