"""One layer: x += mixer(norm(x)), then x += feed_forward(norm(x)), and the norms around them.

In some architectures a layer is one of the two.
"""

from __future__ import annotations

from ..ops.device import Array
from .attention import Attention
from .config import ModelConfig
from .feed_forwards import feed_forward_of
from .loader import Norm
from .mixers import mixers_of
from .per_layer import PerLayerBranch
from .weights import Stack
from .workspace import Rows, Workspace


class Layer:
    """Layer `index` of a model. `Rows.normed` holds its normed input, and later that of the next.

    A layer ends with the norm of the next one: adding and norming are one operation. In a
    `parallel` architecture both halves read the same normed input. Where an architecture has no
    norms of inputs, `Rows.normed` is `Rows.x`.
    """

    def __init__(
        self,
        index: int,
        weights: Stack,
        rotation: int | None,
        config: ModelConfig,
        work: Workspace,
    ) -> None:
        layers = weights.layers
        self.index = index
        self._weights, self._work = layers[index], work
        self._next_norm = weights.norms[index + 1]
        self._mixers = mixers_of(layers[index].mixers, index, rotation, config, work)
        self._feed_forward = None
        if (feed_forward := layers[index].feed_forward) is not None:
            self._feed_forward = feed_forward_of(feed_forward, config, work)
        self._n_embd = config.n_embd
        unnormed = config.architecture.pre_norms and layers[index].ffn_norm is None
        self._parallel = bool(self._mixers) and feed_forward is not None and unnormed
        self._scale, self._post_eps = config.residual_scale, config.architecture.post_norm_eps
        self._normed_in = work.input("normed")
        self._output_scale = layers[index].output_scale
        self._adds = None
        if (per_layer := layers[index].per_layer) is not None:
            self._adds = PerLayerBranch(per_layer, index, config, work)

    def project(self, b: Rows, outputs: Rows, angles: list[Array]) -> None:
        """What the mixers need before they mix (`Mixer.project`)."""
        source = self._normed_in
        for number, mixer in enumerate(self._mixers):
            if number == 0 or outputs is not b:
                source.set(b.normed)
            mixer.project(source, b, outputs, angles)

    def mix(self, attention: Attention, tokens: Rows, outputs: Rows) -> None:
        """See `Mixer.mix`."""
        for mixer in self._mixers:
            mixer.mix(attention, tokens, outputs)

    def finish(self, b: Rows) -> None:
        """From what the mixers mixed to the layer's output, normed for the next layer."""
        weights, work = self._weights, self._work
        for number, mixer in enumerate(self._mixers):
            out = b.array("other", self._n_embd) if number else b.branch
            mixer.output(b, out)
            if number:
                work.device.pointwise.add(b.branch, out, b.branch)
        if self._feed_forward is None:
            self._join(b, weights.post_attention_norm, self._next_norm)
            return
        if self._parallel:
            # The input of matrix products still holds what `project` put there.
            other = b.array("other", self._n_embd)
            self._feed_forward(self._normed_in, b, other)
            work.device.pointwise.add(b.x, other, b.x)
        else:
            if self._mixers:
                self._join(b, weights.post_attention_norm, weights.ffn_norm)
            self._feed_forward(self._normed_in.set(b.normed), b, b.branch)
        if self._adds is None and self._output_scale == 1.0:
            self._join(b, weights.post_ffw_norm, self._next_norm)
            return
        self._join(b, weights.post_ffw_norm, None)
        if self._adds is not None:
            self._adds(b, b.branch)
            self._join(b, self._adds.post_norm, None)
        if self._output_scale != 1.0:
            work.device.pointwise.scale(b.x, self._output_scale)
        if self._next_norm is not None:
            work.norm(self._next_norm, b.x, b.normed)

    def _join(self, b: Rows, post_norm: Norm | None, next_norm: Norm | None) -> None:
        """x += scale * branch, which `post_norm` norms first; normed = norm of x. None: no norm."""
        pointwise = self._work.device.pointwise
        if post_norm is not None:
            self._work.norm(post_norm, b.branch, b.branch, self._post_eps)
        if self._scale != 1.0:
            pointwise.scale(b.branch, self._scale)
        if next_norm is None:
            pointwise.add(b.x, b.branch, b.x)
        else:
            self._work.add_norm(next_norm, b.x, b.branch, b.normed)
