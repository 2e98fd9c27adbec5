"""Django: settings say where the journal is, a commit puts the task, a command runs the worker.

python examples/django_app.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import django
from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from fastjournal import Tasks

tasks = Tasks()


@tasks.task(retry=5)
def count_words(text: str) -> int:
    """The work; the models of Django may be used here as anywhere."""
    return len(text.split())


def take(request: HttpRequest) -> JsonResponse:
    """Put the task if, and once, the transaction is committed."""
    put: list[str] = []
    text = request.POST["text"]
    with transaction.atomic():
        transaction.on_commit(lambda: put.append(count_words.put(text).id.hex()))
        assert not put
    return JsonResponse({"id": put[0]}, status=202)


def look(request: HttpRequest, job: str) -> JsonResponse:
    """How far it is."""
    handle = tasks.handle(job, count_words)
    state = handle.state
    return JsonResponse({"state": state} | ({"words": handle.result()} if state == "done" else {}))


urlpatterns = [path("texts", take), path("texts/<str:job>", look)]


class Worker(BaseCommand):
    """`manage.py worker`: as management/commands/worker.py its name is `Command`."""

    help = "Run the tasks."

    def handle(self, *args: Any, **options: Any) -> None:
        """Until it is told to stop."""
        self.worker = tasks.worker()
        self.worker.run()


def set_up(directory: str) -> None:
    """What settings.py and apps.py of a project say."""
    settings.configure(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        SECRET_KEY="an example",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        FASTJOURNAL_URL=directory,
    )
    django.setup()
    tasks.connect(settings.FASTJOURNAL_URL)


def main(directory: str) -> None:
    """Two requests; in between a worker, which would be a process of its own."""
    import threading

    from django.core.management import call_command
    from django.test import Client

    set_up(directory)
    client = Client()
    job = client.post("/texts", {"text": "to be or not to be"}).json()["id"]
    print(client.get(f"/texts/{job}").json())

    command = Worker()
    thread = threading.Thread(target=call_command, args=(command,))
    thread.start()
    tasks.handle(job).wait(30)
    command.worker.stop()  # as SIGTERM does it for a process
    thread.join()
    answer = client.get(f"/texts/{job}").json()
    print(answer)
    assert answer == {"state": "done", "words": 6}
    tasks.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else f"{temporary}/jobs")
