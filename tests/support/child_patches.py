"""Code for a sitecustomize.py that changes a child process."""

# For a sitecustomize.py that has defined `patch`: changes the module in which a job trains, once a process loads it.
WHEN_IT_TRAINS = """
import importlib.util
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "poslab.training.learner":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (execute(module), patch(module))
        return spec

sys.meta_path.insert(0, Finder())
"""


WHEN_TORCH_IS_LOADED = """
import os
import signal
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.{name})

sys.meta_path.insert(0, Finder())
"""
