"""From a push hook to the first webhook, measured from outside, with the service and the servers of benchmarks.path.

__main__.py     options, the rows and their goals
pushes.py       one push at a time: on an idle service, and beside a first sync and endpoints that hang
burst.py        500 hooks within one second, for 50 repositories
"""
