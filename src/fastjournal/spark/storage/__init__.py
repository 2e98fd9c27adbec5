"""Where segments lie and how they are opened: the only code of the pipeline that reads files.

object_store    segments on S3, GCS, Azure or HDFS, through `pyarrow.fs`
mapped_file     a whole file in memory, without an open descriptor
segments        which segments a journal has, which task reads which, and their bytes
written_files   files that tasks leave for the driver, known again by size and CRC
"""
