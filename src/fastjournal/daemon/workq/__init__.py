"""The Workq text protocol over a journal: `connection` speaks it, `views` shows rows its way."""
