"""`tfdist.ray.RayExecutor`: Horovod's executor. It checks its arguments; what it runs are the two kinds of jobs."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfdist.errors import ConfigError
from tfdist.launch.function import function_job, parcel
from tfdist.launch.function.embedded import check_refused, check_seconds, check_variables, interface_words
from tfdist.ray.elastic_job import ElasticJob
from tfdist.ray.placement import Request, engine
from tfdist.ray.static_job import StaticJob

if TYPE_CHECKING:
    from tfdist.ray.job import Callback

_CALLER = "tfdist.ray.RayExecutor"
_PAIR = 2
_NUMBERS = (
    *("num_workers", "num_hosts", "num_workers_per_host", "cpus_per_worker", "gpus_per_worker"),
    *("min_workers", "max_workers"),
)


@dataclass(frozen=True)
class Settings:
    """How an executor starts; made by `RayExecutor.create_settings`."""

    timeout_s: float
    placement_group_timeout_s: float
    nics: str | Sequence[str] | None


class RayExecutor:
    """Runs functions on ranks that are children of Ray's actors, with the arguments and methods of Horovod's executor.

    With `num_workers` or `num_hosts` the ranks live from `start` to `shutdown`, and what they have made stays from call
    to call. With `min_workers` each call is an elastic job of its own: ranks may be lost while it runs, their actors
    are replaced, and those on nodes that come to the cluster join the others.

    Args:
        settings: From `create_settings`; None for its defaults.
        num_workers: Number of ranks, packed on as few nodes as possible. In an elastic job the number to start with;
            default there: all that have come.
        num_hosts: Number of nodes, instead of `num_workers`, each with `num_workers_per_host` ranks; not in a placement
            group that is there already.
        num_workers_per_host: The ranks of each of them.
        cpus_per_worker: CPUs that Ray reserves for each rank.
        use_gpu: Whether each rank gets GPUs.
        gpus_per_worker: How many; default 1.
        use_current_placement_group: Whether the actors go into the placement group of this process, as in a trial of
            Ray Tune.
        min_workers: The fewest ranks of an elastic job.
        max_workers: The most; default `num_workers`, or else `min_workers`.
        reset_limit: Must be None: ranks are never started anew because others are lost.
        cooldown_range: Seconds, as (first, most), for which a place is left alone after its rank was lost; default
            (5, 600).
        elastic_timeout: Must be None: ranks that live never wait for others.
        override_discovery: Must be true: the hosts are those of the cluster.

    Raises:
        ConfigError: If an argument cannot be used.
        BuildError: From `start`, if ray is missing.

    Example:

    ```python
    executor = tfdist.ray.RayExecutor(num_workers=4)
    executor.start()
    losses = executor.run(train, kwargs={"epochs": 3})
    executor.shutdown()
    ```
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: str | Sequence[str] | None = None,
    ) -> Settings:
        """Settings for `RayExecutor`.

        Args:
            timeout_s: Seconds within which all ranks must have started, after their actors.
            ssh_identity_file: Must be None: nothing here uses ssh. The same applies to `ssh_str`.
            ssh_str: Must be None.
            placement_group_timeout_s: Seconds to wait for room in the cluster.
            nics: Network interfaces for the ranks, as "eth0,eth1" or a list.

        Raises:
            ConfigError: If an argument cannot be used.
        """
        caller = f"{_CALLER}.create_settings"
        if ssh_identity_file is not None or ssh_str is not None:
            raise ConfigError(f"{caller}: nothing here uses ssh; omit ssh_identity_file and ssh_str.")
        interface_words(f"{caller}: nics", nics)
        check_seconds(f"{caller}: timeout_s", timeout_s)
        check_seconds(f"{caller}: placement_group_timeout_s", placement_group_timeout_s)
        return Settings(timeout_s, placement_group_timeout_s, nics)

    def __init__(  # noqa: PLR0913 -- the signature of Horovod
        self,
        settings: Settings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: tuple[float, float] | None = None,
        elastic_timeout: float | None = None,
        override_discovery: bool = True,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "settings")}
        self._settings = settings if settings is not None else self.create_settings()
        if not isinstance(self._settings, Settings):
            raise ConfigError(f"{_CALLER}: settings must come from create_settings(); received {settings!r}.")
        _check(given)
        elastic = min_workers is not None
        most = max_workers or num_workers or min_workers
        actors = most if elastic else num_workers or num_workers_per_host * (num_hosts or 0)
        self._least, self._start, self._cooldown = min_workers, num_workers, cooldown_range
        self._request = Request(
            actors=actors or 0,
            cpus=cpus_per_worker,
            gpus=(gpus_per_worker or 1) if use_gpu else 0,
            a_node=num_workers_per_host if num_hosts else 0,
            is_elastic=elastic,
            takes_current=use_current_placement_group,
            timeout_s=self._settings.placement_group_timeout_s,
        )
        self._job: StaticJob | ElasticJob | None = None

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the ranks; of an elastic executor, nothing yet.

        Args:
            executable_cls: A class of which each rank makes an object, for `execute`.
            executable_args: Its positional arguments.
            executable_kwargs: Its keyword arguments.
            extra_env_vars: More environment variables for the ranks, as `env` of `tfdist.spark.run`.

        Raises:
            ConfigError: If Ray does not run, or has no room for the ranks in time.
            RankError: If the ranks do not start in time.
        """
        if self._job is not None:
            raise ConfigError(f"{_CALLER}.start: it has started already; call shutdown() first.")
        engine()
        check_variables(f"{_CALLER}.start: extra_env_vars", extra_env_vars or {})
        _check_class(executable_cls, executable_args, executable_kwargs)
        env = dict(extra_env_vars or {})
        words = [f"--start-timeout={self._settings.timeout_s:g}", *interface_words("nics", self._settings.nics)]
        if self._request.is_elastic:
            if executable_cls is not None:
                raise ConfigError(
                    f"{_CALLER}.start: the ranks of an elastic executor live for one call, so they keep no object; "
                    "omit executable_cls, or min_workers."
                )
            words += [f"--min-np={self._least}", f"--max-np={self._request.actors}"]
            words += ["--blacklist-cooldown-range", *map(str, self._cooldown)] if self._cooldown else []
            self._job = ElasticJob(self._request, words, env, self._least or 1, self._start)
            return
        self._job = job = StaticJob(self._request, words, env, self._settings.timeout_s)
        # An executor that nobody has any more, as when a cell of a notebook runs again, gives its room back.
        weakref.finalize(self, job.close).atexit = False
        if executable_cls is not None:
            self._job.make(executable_cls, tuple(executable_args or ()), dict(executable_kwargs or {}))

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> list[Any]:
        """Calls `fn(*args, **kwargs)` on all ranks.

        Args:
            fn: Any function; it calls `tfdist.init()` itself.
            args: Its positional arguments, the same on every rank.
            kwargs: Its keyword arguments.
            callbacks: Each is called in this process with what rank 0 gives to `tfdist.ray.log`.

        Returns:
            The results by rank; of an elastic job, of the ranks that were there at its end.

        Raises:
            ConfigError: If an argument cannot be used, or the executor has not started.
            RankError: If a rank was lost, or of an elastic job too many. The executor has ended then.
            Exception: What `fn` raised, from the rank that raised first; its `__cause__` is a `RankError` with the rank
                and its traceback. The executor has ended then.
        """
        _check_call("run", fn, args or (), kwargs or {}, callbacks or ())
        return self._started().call(parcel.pack_call(fn, args or (), kwargs or {}), parcel.name_of(fn), callbacks or ())

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callback] | None = None) -> list[Any]:
        """Calls `fn(object)` on all ranks, with what `executable_cls` has made there. Otherwise as `run`."""
        _check_call("execute", fn, (), {}, callbacks or ())
        return self._static("execute").apply(fn, callbacks or ())

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls `fn(object)` on rank 0 alone, and returns its result. Otherwise as `run`."""
        _check_call("execute_single", fn, (), {}, ())
        return self._static("execute_single").apply(fn, (), only_first=True)[0]

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """As `run`, but returns at once: one reference by rank, for `ray.get`, which raises what `fn` raised."""
        _check_call("run_remote", fn, args or (), kwargs or {}, ())
        return self._static("run_remote").call_remote(parcel.pack_call(fn, args or (), kwargs or {}))

    def shutdown(self) -> None:
        """Ends the ranks and the actors. May be called again."""
        if self._job is not None:
            self._job.close()
            self._job = None

    def _started(self) -> StaticJob | ElasticJob:
        if self._job is None:
            raise ConfigError(f"{_CALLER}: it has not started; call start() first.")
        return self._job

    def _static(self, method: str) -> StaticJob:
        job = self._started()
        if isinstance(job, ElasticJob):
            raise ConfigError(f"{_CALLER}.{method}: an elastic executor has run() only.")
        return job


def _check_class(kind: Any, args: Any, kwargs: Any) -> None:
    """Raises ConfigError for what no object can be made of."""
    if kind is not None and not callable(kind):
        raise ConfigError(f"{_CALLER}.start: executable_cls must be a class; received {kind!r}.")
    if kind is None and (args or kwargs):
        raise ConfigError(f"{_CALLER}.start: executable_args and executable_kwargs need executable_cls.")


def _check_call(method: str, fn: Any, args: Any, kwargs: Any, callbacks: Any) -> None:
    """Raises ConfigError for arguments of a call that cannot be used."""
    caller = f"{_CALLER}.{method}"
    function_job.check_call(f"{caller}: fn", fn, args, kwargs)
    if not isinstance(callbacks, (list, tuple)) or not all(map(callable, callbacks)):
        raise ConfigError(f"{caller}: callbacks must be a list of functions; received {callbacks!r}.")
    ray = engine()
    for value in (*args, *kwargs.values()):
        if isinstance(value, (ray.ObjectRef, ray.actor.ActorHandle)):
            raise ConfigError(
                f"{caller}: received {value!r}, which ranks cannot use: they are no workers of Ray. Pass the value, as "
                "by ray.get()."
            )


def _check(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for arguments that cannot be used."""
    for name in _NUMBERS:
        value = given[name]
        if not _is_count(value):
            raise ConfigError(f"{_CALLER}: {name} must be a whole number, 1 or more; received {value!r}.")
    check_refused(_CALLER, given)
    problem = ""
    if not given["override_discovery"]:
        problem = "override_discovery must be true, because the hosts are those of the cluster"
    if not isinstance(given["use_current_placement_group"], bool):
        problem = "use_current_placement_group must be true or false"
    if given["num_hosts"] is None and given["num_workers_per_host"] != 1:
        problem = "num_workers_per_host needs num_hosts"
    if given["gpus_per_worker"] and not given["use_gpu"]:
        problem = "gpus_per_worker needs use_gpu=True"
    problem = problem or (_wrong_sizes if given["min_workers"] is None else _wrong_elastic_sizes)(given)
    if problem:
        received = ", ".join(f"{name}={value!r}" for name, value in given.items() if value != _DEFAULTS[name])
        raise ConfigError(f"{_CALLER}: {problem}; received {received or 'nothing'}.")


def _is_range(value: Any) -> bool:
    is_pair = isinstance(value, (list, tuple)) and len(value) == _PAIR
    return is_pair and all(isinstance(each, (int, float)) for each in value) and 0 < value[0] <= value[1]


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)


def _wrong_sizes(given: Mapping[str, Any]) -> str:
    if (given["num_workers"] is None) == (given["num_hosts"] is None):
        return "give num_workers, num_hosts, or min_workers if elastic"
    return "max_workers and cooldown_range need min_workers" if given["max_workers"] or given["cooldown_range"] else ""


def _wrong_elastic_sizes(given: Mapping[str, Any]) -> str:
    if given["num_hosts"] is not None:
        return "num_hosts and min_workers cannot be combined; give only one"
    cooldown = given["cooldown_range"]
    if cooldown is not None and not _is_range(cooldown):
        return "cooldown_range must be (first, most), in seconds, with 0 < first <= most"
    first = given["num_workers"] or given["min_workers"]
    in_order = given["min_workers"] <= first <= (given["max_workers"] or first)
    return "" if in_order else "expected min_workers <= num_workers <= max_workers"


_DEFAULTS = {name: each.default for name, each in inspect.signature(RayExecutor).parameters.items()}
