"""From a journal's archive to a Delta table, SQL and a page: to be pasted into a notebook.

python examples/spark_lake.py [DIRECTORY]

The archive may as well lie on S3: name it `s3://bucket/jobs`, here and in the journal's settings.
It needs `pip install 'fastjournal[spark,delta]'`, and nothing of Delta in Spark itself.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from fastjournal import Journal
from fastjournal.spark import local_session
from fastjournal.spark.report.write import report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def work(directory: Path, archive: Path) -> None:
    """Somebody works with a journal that ships its history."""
    with Journal(directory, archive=archive, background=False) as journal:
        for n in range(200):
            journal.put(b"page %d" % n, queue="pages", key=f"page:{n % 150}", priority=n % 3)
        for job in journal.lease_many(120, "pages", worker="ann"):
            job.fail("not found") if job.payload.endswith(b"7") else job.done()
        journal.sync()
        journal.ship()


def follow(spark: SparkSession, archive: Path, table: Path, checkpoint: Path) -> None:
    """What happened since the last time goes into a Delta table, each batch once."""
    events = (
        spark.readStream.format("fastjournal")
        .option("view", "events")
        .option("columns", "time,time_ns,member,effect,queue,key,id_text,worker,note")
        .option("stateLocation", str(checkpoint / "state"))
        .load(str(archive))
        .selectExpr("*", "to_date(time) as day")
    )

    def append(batch: DataFrame, number: int) -> None:
        known = DeltaTable(table) if DeltaTable.is_deltatable(str(table)) else None
        if known is None or (known.transaction_version("events") or -1) < number:
            write_deltalake(
                table,
                batch.toArrow(),
                mode="append",
                partition_by=["day"],
                commit_properties=CommitProperties(
                    app_transactions=[Transaction("events", number)]
                ),
            )

    query = (
        events.writeStream.foreachBatch(append)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(directory: str) -> None:
    """All of it, twice: the second time only what is new is read."""
    root = Path(directory).absolute()
    root.mkdir(exist_ok=True)
    archive, table = root / "archive", root / "lake" / "events"
    spark = local_session("local[2]", **{"spark.log.level": "ERROR"})
    for _ in range(2):
        work(root / "jobs", archive)
        follow(spark, archive, table, root / "checkpoint")

    # SQL over the files that the newest version of the table names.
    files = DeltaTable(table).file_uris()
    spark.read.option("basePath", str(table)).parquet(*files).createOrReplaceTempView("events")
    counted = spark.sql(
        "select effect, count(*) as jobs, count(distinct id_text) as different"
        " from events where queue = 'pages' group by effect order by effect"
    )
    counted.show()
    found = {row.effect: row.jobs for row in counted.collect()}
    with Journal(root / "jobs", background=False) as journal:
        waiting = len(list(journal.jobs("pages")))
    assert found["new"] + found["merged"] == 400
    assert found["new"] - found["done"] == waiting, "what the table says is what the journal holds"

    told = report(spark, archive)
    (root / "report.html").write_text(told.html())
    print(f"{told.figures['totals']['asked']} jobs asked for: {root / 'report.html'}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(scratch)
