"""Adam whose second moment is freed of the noise's known variance."""

from __future__ import annotations

import math

import torch


class DebiasedAdam(torch.optim.Adam):
    """DP-AdamBC (Tang et al. 2023, arXiv:2312.14334): the step is m̂ / √max(v̂ - n̂, floor).

    The square of a release is on average that of the estimate plus the variance of its noise. That
    variance is public: n̂ is its average over rounds, weighted as the squares in v̂ are.

    The floor is the standard deviation of the noise in v̂: a smaller difference cannot be told from
    zero. It is `eps`² if that is larger. Weight decay is torch's; `amsgrad` is not supported.
    """

    noise_variance = 0.0
    """Of each entry of the gradient that the next step takes."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step; a parameter's state is made in the first."""
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
                gone = beta2**steps  # the weight of the zeros that v and n began with
                noise = float(state["noise"]) / (1.0 - gone)
                squared_weights = (1.0 - beta2) / (1.0 + beta2) * (1.0 + gone) / (1.0 - gone)
                floor = max(group["eps"] ** 2, noise * math.sqrt(2.0 * squared_weights))
                moment = (state["square"] / (1.0 - gone)).sub_(noise).clamp_(min=floor)
                value.addcdiv_(state["mean"], moment.sqrt_(), value=-rate / (1.0 - beta1**steps))
