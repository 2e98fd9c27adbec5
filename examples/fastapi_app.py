"""FastAPI: a request puts a task and answers; another asks how far it is.

python examples/fastapi_app.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI

from fastjournal import Tasks

tasks = Tasks()  # FASTJOURNAL_URL says where, or `tasks.connect(...)` does


@tasks.task(retry=5)
def count_words(text: str) -> int:
    """The work."""
    return len(text.split())


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """The connection of this loop is made when it is first used, and closed at the end."""
    yield
    await tasks.aclose()


def get_tasks() -> Tasks:
    """A dependency, to be overridden in tests."""
    return tasks


app = FastAPI(lifespan=lifespan)


@app.post("/texts", status_code=202)
async def take(text: str) -> dict[str, str]:
    """Put the task, and answer at once."""
    handle = await count_words.aput(text)
    return {"id": handle.id.hex()}


@app.get("/texts/{job}")
def look(job: str, mine: Annotated[Tasks, Depends(get_tasks)]) -> dict[str, int | str]:
    """How far it is."""
    handle = mine.handle(job, count_words)
    state = handle.state
    return {"state": state, "words": handle.result()} if state == "done" else {"state": state}


def main(directory: str) -> None:
    """Two requests; in between a worker, which would be a process of its own."""
    import threading

    from fastapi.testclient import TestClient

    tasks.connect(directory)
    with TestClient(app) as client:
        job = client.post("/texts", params={"text": "to be or not to be"}).json()["id"]
        print(client.get(f"/texts/{job}").json())
        worker = tasks.worker(concurrency=1)
        thread = threading.Thread(target=worker.run)
        thread.start()
        tasks.handle(job).wait(30)
        answer = client.get(f"/texts/{job}").json()
        worker.stop()
        thread.join()
    print(answer)
    assert answer == {"state": "done", "words": 6}
    tasks.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else f"{temporary}/jobs")
