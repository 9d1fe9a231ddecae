"""Adam without the known noise variance in its second moment."""

from __future__ import annotations

import math

import torch


class DebiasedAdam(torch.optim.Adam):
    """DP-AdamBC (Tang et al. 2023, arXiv:2312.14334): the step is m̂ / √max(v̂ - n̂, floor).

    The expected square of a release is the square of the estimate plus the noise variance, which is
    public. n̂ is the average of this variance over rounds, with the weights of the squares in v̂.

    The floor is the standard deviation of the noise in v̂, because a smaller difference is
    indistinguishable from zero; or `eps`², if that is larger. Weight decay is torch's; `amsgrad` is
    not supported.
    """

    noise_variance = 0.0
    """Variance of the noise in each entry of the next step's gradient."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step; the first step creates each parameter's state."""
        for group in self.param_groups:
            rate, decay, (beta1, beta2) = group["lr"], group["weight_decay"], group["betas"]
            for value in group["params"]:
                state, gradient = self.state[value], value.grad
                if not state:
                    state.update({key: torch.zeros(()) for key in ("step", "noise")})
                    state.update({key: torch.zeros_like(value) for key in ("mean", "square")})
                if group["decoupled_weight_decay"]:
                    value.mul_(1.0 - rate * decay)
                elif decay:
                    gradient = gradient.add(value, alpha=decay)
                state["step"] += 1
                state["noise"].mul_(beta2).add_((1.0 - beta2) * self.noise_variance)
                state["mean"].lerp_(gradient, 1.0 - beta1)
                state["square"].mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
                steps = int(state["step"])
                gone = beta2**steps  # weight of the initial zeros in v and n
                noise = float(state["noise"]) / (1.0 - gone)
                squared_weights = (1.0 - beta2) / (1.0 + beta2) * (1.0 + gone) / (1.0 - gone)
                floor = max(group["eps"] ** 2, noise * math.sqrt(2.0 * squared_weights))
                moment = (state["square"] / (1.0 - gone)).sub_(noise).clamp_(min=floor)
                value.addcdiv_(state["mean"], moment.sqrt_(), value=-rate / (1.0 - beta1**steps))
