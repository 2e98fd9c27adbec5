"""A stream from one journal into another, in a process of its own, to be killed or on a cluster.

    [PIPELINE_MASTER=...] python pipeline_child.py SOURCE TARGET CHECKPOINT [once]

Batches of 500 records, as fast as they come; with `once` until all is carried over.
"""

from __future__ import annotations

import os
import sys

from fastjournal.spark.session import local_session


def main() -> None:
    source, target, checkpoint = sys.argv[1:4]
    spark = local_session(
        os.environ.get("PIPELINE_MASTER", "local[2]"),
        **{
            "spark.ui.enabled": "false",
            "spark.log.level": "OFF",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    rows = (
        spark.readStream.format("fastjournal")
        .options(commands="put", columns="payload,queue", maxRecordsPerTrigger="500")
        .load(source)
        .where("queue = 'in'")
        .selectExpr("payload", "'out' as queue")
    )
    writer = rows.writeStream.format("fastjournal").option("checkpointLocation", checkpoint)
    if sys.argv[4:] == ["once"]:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime="0 seconds")
    writer.start(target).awaitTermination()


if __name__ == "__main__":
    main()
