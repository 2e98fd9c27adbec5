"""How the package is put together; nothing here knows of journals.

compiled       which modules make up the compiled core, and which build of them runs
plain_buffers  what the interpreted core uses where `librt` is not installed
lazy_names     names that are found when first used, so that an import loads little
moved_names    modules of an earlier version that stand elsewhere
"""

__version__ = "0.2.0"
