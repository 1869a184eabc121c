"""Tasks with right answers that a model is measured on.

```
Task            task.py            what is asked, how it is judged: benchmarks/ (published data), signs/ (drawn from seeds)
   │  samples                      a Sample is a conversation, the groups that count it, and its judge
   ▼
Answerer        answerer.py        this process (in_process.py) or an OpenAI-compatible server (server.py): one answer at a time
   │  run.py                       many at once; finished samples go to a file (sample_file.py), from which a rerun goes on
   ▼
Judged          run.py             a record per sample: tables and summaries (report.py), agreement of two runs (agreement.py)
```
"""
