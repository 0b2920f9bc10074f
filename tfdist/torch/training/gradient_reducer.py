"""Reduces gradients bucket by bucket during the backward pass. Not an optimizer: that is `optimizer`."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from tfdist.elastic import advice, loop
from tfdist.errors import ConfigError, MismatchError
from tfdist.ops.reduction import ReduceOp, Sum
from tfdist.torch.collective.allreduce import allreduce, reducing, start_gradients
from tfdist.torch.collective.compression import Compression, parts_of
from tfdist.torch.collective.handle import synchronize
from tfdist.torch.collective.object import allgather_object
from tfdist.torch.collective.sparse import sparse_allreduce_async
from tfdist.torch.collective.tensor import is_expanded
from tfdist.torch.training.drift import Drift
from tfdist.torch.training.gradient_plan import Named, check_plans, refuse_strangers
from tfdist.world.process_sets import ProcessSet
from tfdist.world.session import session

_logger = logging.getLogger("tfdist")
# The attribute of a gradient that was sent: its version then.
_SENT = "_tfdist_sent"
# What an error says of gradients that nobody wants.
OTHER_MODELS = (
    "Where the loss is another model's, as of an actor that a critic judges, let it make no gradients here: "
    "requires_grad_(False) on this model meanwhile, or loss.backward(inputs=[*other.parameters()])."
)
# A tensor of a bucket: its name, what is sent, and whether a custom compression gets it.
Sent = tuple[str, torch.Tensor, bool]
# By parameter: the one hook of the newest optimizer that has it.
_hooks: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def take_over(named: Iterable[Named]) -> bool:
    """Ends what older optimizers of these parameters do in a backward pass, as for an earlier stage of the training.

    They still reduce gradients before steps of their own. Returns whether there are any.
    """
    hooks = [hook for each in named if (hook := _hooks.pop(each.parameter, None)) is not None]
    for hook in hooks:
        hook.remove()
    return bool(hooks)


def _first_failure(waits: Iterable[Callable[[], None]]) -> Exception | None:
    """Waits for all, since they use the gradients."""
    failure: Exception | None = None
    for wait in waits:
        try:
            wait()
        except Exception as error:  # noqa: BLE001  (raised when all have ended)
            failure = failure or error
    return failure


class BucketReduction:
    """Starts the reduction of the gradients of a bucket. The arguments are those of `DistributedOptimizer`."""

    def __init__(
        self,
        op: ReduceOp,
        factors: tuple[float, float],
        label: str,
        process_set: ProcessSet,
        compression: Any,
        sparse_as_dense: bool,
    ) -> None:
        self.label, self.process_set = label, process_set
        self._op, self._factors, self._sparse_as_dense = op, factors, sparse_as_dense
        self._wire, self._custom = parts_of(compression)
        self._sparse: set[str] = set()
        self._unknown: set[str] = set()

    def know(self, dense: Iterable[str], sparse: Iterable[str], names: Iterable[str]) -> None:
        """Takes gradients for what they are on any rank, also zeros in the place of one that is missing.

        Args:
            dense: The names of those that are dense on a rank.
            sparse: Of those that are sparse on one.
            names: Of all. Those that are neither travel with a word on what they are, until one is sparse.
        """
        self._sparse.update(sparse)
        self._unknown = set(names).difference(dense, self._sparse)

    def known_sparse(self) -> list[str]:
        """The names of gradients that were sparse so far."""
        return sorted(self._sparse)

    def start(
        self, number: int, bucket: Sequence[Named], gradients: Sequence[torch.Tensor | None]
    ) -> Callable[[], None]:
        """Starts it; returns a function that waits, and leaves the results in the gradients.

        Where there is none, nothing is reduced; the ranks compare that it is so on all of them.
        """
        sent: list[Sent] = []
        waits, sparse_again, asked = [], [], []
        for named, gradient in zip(bucket, gradients, strict=True):
            if gradient is None:
                waits += self._start_nothing(named, sent)
                continue
            if named.name in self._unknown:
                is_sparse, gradient = gradient.is_sparse, gradient.to_dense() if gradient.is_sparse else gradient
                asked.append((named, is_sparse, gradient))
            elif self._sparse_as_dense and (gradient.is_sparse or named.name in self._sparse):
                self._sparse.add(named.name)
                gradient = gradient.to_dense()
                sparse_again.append((named.parameter, gradient))
            elif named.name in self._sparse and not gradient.is_sparse:  # zeros of a rank that has no gradient
                gradient = gradient.to_sparse(1) if gradient.dim() else gradient
            if gradient.is_sparse:
                waits.append(self._start_sparse(named, gradient))
            else:
                sent.append((named.name, gradient, True))
        flags = torch.tensor([own for _, own, _ in asked], dtype=torch.float32, device="cpu")
        if asked:
            flags = flags.to(asked[0][2].device)
            sent.append((f"which of {len(asked)} gradients are sparse", flags, False))
        if sent:
            waits.append(self._start_dense(f"{self.label} gradients {number}", sent))

        def wait() -> None:
            if (failure := _first_failure(waits)) is not None:
                raise failure
            for (named, _, gradient), is_sparse in zip(asked, flags.tolist(), strict=True):
                if is_sparse:
                    self._sparse.add(named.name)
                    self._unknown.discard(named.name)
                    sparse_again.append((named.parameter, gradient))
            for parameter, gradient in sparse_again:  # as the optimizer of one process sees it
                parameter.grad = gradient.to_sparse(1)
            self._mark(named.parameter.grad for named in bucket)

        self._mark(gradients)
        return wait

    def _start_nothing(self, named: Named, sent: list[Sent]) -> list[Callable[[], None]]:
        """In the place of the gradient of a frozen parameter, since a rank that has one would wait for the others."""
        nothing = f"{named.name} (requires_grad=False and no gradient)", named.parameter.detach().new_empty(0), False
        if named.name in self._sparse and not self._sparse_as_dense:
            return [self._start_dense(f"{self.label} sparse {named.name}", [nothing])]
        sent.append(nothing)
        return []

    def _mark(self, gradients: Iterable[torch.Tensor | None]) -> None:
        """Remembers what is summed, and would grow if it was again."""
        for gradient in gradients if self._op is Sum else ():
            if gradient is not None:
                setattr(gradient, _SENT, gradient._version)

    def adds_again(self, gradient: torch.Tensor) -> bool:
        """Whether it is the result of a sum that this one would add up again."""
        return self._op is Sum and self.process_set.size() > 1 and getattr(gradient, _SENT, None) == gradient._version

    def number(self, own: Any) -> torch.Tensor:
        """A number of this rank, reduced by the same operation."""
        return allreduce(torch.as_tensor(own).detach(), None, f"{self.label} loss", Compression.none, self._op)

    def _start_sparse(self, named: Named, gradient: torch.Tensor) -> Callable[[], None]:
        self._sparse.add(named.name)
        label = f"{self.label} sparse {named.name}"
        wait = sparse_allreduce_async(gradient, label, self._op, self.process_set)

        def finish() -> None:
            named.parameter.grad = wait()

        return finish

    def _start_dense(self, label: str, sent: Sequence[Sent]) -> Callable[[], None]:
        names = [name for name, _, _ in sent]
        how = reducing(self._op, self._factors, label, self.process_set, self._wire)
        if self._custom is None:
            handle = start_gradients([tensor for _, tensor, _ in sent], names, how)
            return lambda: synchronize(handle)
        pairs = [self._custom.compress(tensor) if compresses else (tensor, None) for _, tensor, compresses in sent]
        handle = start_gradients([tensor.clone() for tensor, _ in pairs], names, how)

        def finish() -> None:
            reduced = synchronize(handle)
            for (_, into, compresses), tensor, (_, context) in zip(sent, reduced, pairs, strict=True):
                into.copy_(self._custom.decompress(tensor, context) if compresses else tensor)

        return finish


class GradientReducer:
    """Starts each bucket when the backward pass has made its gradients, and waits for all before the step.

    In the first step all of them start at its end: then the ranks compare their parameters, and tell each other which
    gradients are sparse, as one that a rank lacks can be taken for neither. They also take over the order in which the
    first rank has got its gradients, and plan anew.

    Args:
        buckets: The plan for the first step.
        reduction: Starts one.
        passes: How many backward passes there are before a step.
        drift: Compares the parameters of the ranks.
        replan: The buckets of parameters in this order; None to keep `buckets`.
    """

    def __init__(
        self,
        buckets: Sequence[Sequence[Named]],
        reduction: BucketReduction,
        passes: int,
        drift: Drift,
        replan: Callable[[Sequence[Named]], Sequence[Sequence[Named]]] | None,
    ) -> None:
        self._first, self._reduction, self._replan = buckets, reduction, replan
        self._passes, self._drift = passes, drift
        self._use(buckets)
        self._order: dict[str, None] = {}  # the names of the gradients, as they came in the first step
        self._waits: dict[int, Callable[[], None]] = {}
        self._streams: dict[int, set[torch.cuda.Stream]] = {}  # on which the gradients of a bucket were made on a GPU
        self._given: dict[str, tuple[torch.Tensor, int]] = {}  # gradients by name, and how often each was changed
        self._skips = self._synchronized = self._compared = self._scaler_has_waited = False
        self._warned: set[str] = set()
        self._took_over = False
        self._lock = threading.RLock()  # hooks come from the thread of each device
        self.set_passes(passes)

    def begin_anew(self) -> None:
        """The ranks have changed: what was started has ended, and new ones have compared nothing."""
        with self._lock:
            self._waits, self._given, self._streams = {}, {}, {}
            self._drift.begin_anew()
            self._compared = self._synchronized = self._scaler_has_waited = False
            self._order = {}
            self._use(self._first)
            self.set_passes(self._passes)

    def _use(self, buckets: Sequence[Sequence[Named]]) -> None:
        self._buckets = buckets
        self._bucket_of = {id(named.parameter): place for place, bucket in enumerate(buckets) for named in bucket}

    def watch(self, took_over: bool) -> None:
        """Looks at each gradient when a backward pass has added to it; nobody else does.

        Args:
            took_over: What `take_over` has returned.
        """
        self._took_over = took_over
        for bucket in self._buckets:
            for named in bucket:
                hook = functools.partial(self._note, named.name)
                _hooks[named.parameter] = named.parameter.register_post_accumulate_grad_hook(hook)

    def set_passes(self, passes: int) -> None:
        """As `_Distributed.set_backward_passes_per_step`.

        Raises:
            ConfigError: If it is not a number above 0.
        """
        if not isinstance(passes, int) or passes < 1:
            raise ConfigError(f"backward_passes_per_step must be a number above 0; received {passes!r}.")
        self._passes = passes
        self._left = dict.fromkeys(self._bucket_of, passes)
        self._missing = [len(bucket) for bucket in self._buckets]

    def _note(self, name: str, parameter: torch.Tensor) -> None:
        with self._lock:
            key = id(parameter)
            place = self._bucket_of[key]
            if place in self._waits or self._left[key] == 0:
                raise ConfigError(self._too_many(name))
            self._scaler_has_waited = False
            self._left[key] -= 1
            if parameter.grad is not None:
                self._given[name] = parameter.grad, parameter.grad._version
            if not self._compared:
                self._order.setdefault(name)
            if parameter.is_cuda:
                self._streams.setdefault(place, set()).add(torch.cuda.current_stream(parameter.device))
            if self._left[key] == 0:
                self._missing[place] -= 1
                if self._missing[place] == 0 and self._compared:
                    self._start(place)

    def _too_many(self, name: str) -> str:
        older = (
            "An older optimizer has such parameters too, and this one took them over: call DistributedOptimizer for it "
            "when the older one has taken its last step. "
            if self._took_over
            else ""
        )
        return (
            f"there were more than backward_passes_per_step={self._passes} backward passes to {name} before step(). "
            f"Pass their number to DistributedOptimizer. {older}{OTHER_MODELS} Where all ranks leave a step out, call "
            "optimizer.synchronize() and optimizer.zero_grad() in its place; of model.zero_grad() the optimizer knows "
            "nothing."
        )

    def _start(self, place: int) -> None:
        bucket = self._buckets[place]
        session.gradients_reduced = True
        for stream in self._streams.pop(place, ()):
            torch.cuda.current_stream(stream.device).wait_stream(stream)
        with torch.no_grad():
            gradients = [self._gradient_of(named) for named in bucket]
            self._waits[place] = self._reduction.start(place, bucket, gradients)

    def _gradient_of(self, named: Named) -> torch.Tensor | None:
        """None for a parameter that was frozen since, so that the step leaves it as it is."""
        parameter = named.parameter
        if parameter.grad is None and not parameter.requires_grad:
            return None
        if parameter.grad is None:
            if named.name not in self._warned:
                self._warned.add(named.name)
                _logger.warning(
                    "%s has no gradient on this rank at step(); it counts as zeros, so momentum and weight decay still "
                    "move it. If no rank uses it, set requires_grad to False on all ranks.",
                    named.name,
                )
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad.layout == torch.strided and is_expanded(parameter.grad):  # as of torch.autograd.grad
            parameter.grad = parameter.grad.contiguous()
        return parameter.grad

    def _compare(self) -> None:
        """Once: all ranks train the same parameters, in the same buckets. Tells them what is sparse, and the order."""
        label, process_set = self._reduction.label, self._reduction.process_set
        mine = [[named.outline() for named in bucket] for bucket in self._buckets]
        gradients = {named.name: named.parameter.grad for bucket in self._buckets for named in bucket}
        found = {name: gradient.is_sparse for name, gradient in gradients.items() if gradient is not None}
        found |= dict.fromkeys(self._reduction.known_sparse(), True)
        if not loop.is_running():
            advice.need_loop()
        told = allgather_object((mine, found, list(self._order), self._drift.digests()), f"{label} plan", process_set)
        plans, found_by_all, orders, digests = zip(*told, strict=True)  # of the ranks that have not joined
        check_plans(plans, [rank for rank, *_ in digests], label)
        self._drift.before_first_step(digests)
        kinds = set(itertools.chain(*(each.items() for each in found_by_all)))
        dense, sparse = ([name for name, is_sparse in kinds if is_sparse == wanted] for wanted in (False, True))
        self._reduction.know(dense, sparse, gradients)
        self._order = dict.fromkeys(orders[0])
        self._compared = True

    def _plan_anew(self) -> None:
        """After the first step. Parameters whose gradients the first rank did not have come last."""
        if self._replan is None:
            return
        by_name = {named.name: named for bucket in self._first for named in bucket}
        names = {**self._order, **dict.fromkeys(by_name)}
        self._use(self._replan([by_name[name] for name in names]))

    def synchronize(self) -> None:
        """Waits until all gradients are reduced."""
        with self._lock:
            failure = self._changed() or self._added_again()
            is_first = not self._compared
            if is_first:
                try:
                    self._compare()
                except MismatchError:  # on all ranks; the next step is one like any other
                    self.begin_anew()
                    raise
            for place in range(len(self._buckets)):
                if place not in self._waits:
                    self._start(place)
            waits, self._waits, self._given = self._waits, {}, {}
            if is_first:
                self._plan_anew()
            self.set_passes(self._passes)
        with torch.no_grad():
            of_waits = _first_failure(waits[place] for place in sorted(waits))
        failure = failure or of_waits
        if failure is not None:
            raise failure
        self._synchronized = True

    def before_unscaling(self, parameters: Sequence[torch.Tensor]) -> None:
        """Reduces, unless the script has, so that a `GradScaler` sees the gradients of all ranks.

        Every rank does, also one that had no backward pass. The step that may follow does not reduce.
        """
        refuse_strangers(parameters, self._bucket_of)
        if not self._synchronized:
            self.synchronize()
        self._synchronized, self._scaler_has_waited = False, True

    def after_unscaling(self, found: dict[torch.device, torch.Tensor]) -> None:
        """What a `GradScaler` has found is the same on all ranks, as the gradients are."""

    def after_scaler(self) -> None:
        """The scaler has taken its step, or skipped it."""
        self._scaler_has_waited = False

    def _changed(self) -> Exception | None:
        """Names the first gradient that is no longer the one which was given away."""
        for place, bucket in enumerate(self._buckets):
            for named in bucket:
                gradient, version = self._given.get(named.name, (None, 0))
                now = named.parameter.grad
                kept = now is gradient and (now is None or now._version == version)
                # One that was removed before it was sent counts as zeros; one that was never there may be anything.
                if gradient is None or kept or (now is None and place not in self._waits and self._compared):
                    continue
                return ConfigError(
                    f"the gradient of {named.name} was changed after backward() and before step(), by clipping, the "
                    "script or DistributedDataParallel, when it may be on its way to the other ranks. Call "
                    "optimizer.synchronize() before, and optimizer.step() in: with optimizer.skip_synchronize(). "
                    "DistributedDataParallel averages gradients itself: take either it, with an optimizer that is not "
                    "distributed, or DistributedOptimizer."
                )
        return None

    def _added_again(self) -> Exception | None:
        """Names the first gradient that is already a sum over the ranks, of those that are yet to be sent."""
        for place, bucket in enumerate(self._buckets):
            for named in bucket if place not in self._waits else ():
                if named.parameter.grad is not None and self._reduction.adds_again(named.parameter.grad):
                    return ConfigError(
                        f"the gradient of {named.name} is already the sum over the ranks, of an earlier step(), "
                        "synchronize() or another optimizer, and with op=Sum would be added up again. Call zero_grad() "
                        "and backward() before, or take op=Average."
                    )
        return None

    def before_step(self, parameters: Sequence[torch.Tensor]) -> None:
        """Reduces, unless the script has done so and skips it."""
        refuse_strangers(parameters, self._bucket_of)
        if self._skips or self._scaler_has_waited:
            return
        if self._synchronized:
            _logger.warning(
                "optimizer.step() after optimizer.synchronize() reduces the gradients twice. Call it in: with "
                "optimizer.skip_synchronize()"
            )
        self.synchronize()
        self._synchronized = False  # that was this method's own

    def loss_of_all(self, loss: Any) -> Any:
        """What a closure has returned, reduced as the gradients are."""
        return None if loss is None else self._reduction.number(loss)

    def after_step(self) -> None:
        """The next step starts from its own gradients."""
        self._synchronized = self._scaler_has_waited = False
        self._drift.after_step()

    def buckets(self) -> Sequence[Sequence[Named]]:
        """Those of the next step."""
        return self._buckets

    def discard(self) -> None:
        """The script has put its gradients aside, of which none is on its way: the step begins anew."""
        with self._lock:
            self._given = {}
            self._synchronized = self._scaler_has_waited = False
            self.set_passes(self._passes)

    def is_under_way(self) -> bool:
        """Whether all gradients of a bucket are there, and may be on their way."""
        return 0 in self._missing

    @contextlib.contextmanager
    def skipping(self) -> Iterator[None]:
        """As `_Distributed.skip_synchronize`."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False
