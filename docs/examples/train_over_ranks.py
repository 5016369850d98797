"""A small network, trained by hand over ranks: the same weights, bit for bit, on any number of them.

Here the ranks are four threads, on the best device there is; docs/distributed.md has it on two GPUs, a process each.
"""

import numpy as np

import ptxrt
from ptxrt import ops
from ptxrt.distributed import Group

SAMPLES, INPUTS, HIDDEN, STEPS, RATE = 30, 4, 3, 5, np.float32(0.2)
UNIT = 2.0**40  # gradients are added up as integers of 1 / UNIT, so that their sum too is the same for every cut


def data():
    rng = np.random.default_rng(1)
    x = rng.normal(3, 2, (SAMPLES, INPUTS)).astype(np.float32)
    return x, (x[:, 0] > x[:, 1]).astype(np.float32)


def summed(communicator, per_sample):
    """Return the sum over the samples of all ranks."""
    integers = np.rint(per_sample.astype(np.float64) * UNIT).astype(np.int64).sum(0)
    array = ptxrt.to_device(integers, communicator.device)
    communicator.all_reduce(array, communicator.device.default_stream)
    return (array.to_host() / UNIT).astype(np.float32)


def train(communicator):
    """Train on this rank's share of the samples; return the loss of each step, and the weights."""
    device, rank, size = communicator.device, communicator.rank, communicator.size
    x, wanted = (array[rank::size] for array in data())
    rng = np.random.default_rng(2)
    first = rng.normal(0, 1, (INPUTS, HIDDEN)).astype(np.float32)
    last = rng.normal(0, 1, HIDDEN).astype(np.float32)
    scale, shift = np.ones(HIDDEN, np.float32), np.zeros(HIDDEN, np.float32)
    running = ptxrt.zeros(HIDDEN, "float32", device), ptxrt.ones(HIDDEN, "float32", device)
    losses = []
    for _ in range(STEPS):
        # Forward: a linear layer, batch_norm over all ranks, max(0, .), a linear layer, the logistic function
        hidden = ptxrt.to_device((x[:, :, None] * first).sum(1), device)
        w, b = (ptxrt.to_device(each, device) for each in (scale, shift))
        normal, mean, var = ops.batch_norm(hidden, w, b, *running, training=True, communicator=communicator)
        active = np.maximum(normal.to_host(), 0)
        output = 1 / (1 + np.exp(-(active * last).sum(1)))
        losses.append(float(summed(communicator, (output - wanted) ** 2)) / SAMPLES)

        # Backward: each gradient summed over all samples, of all ranks; batch_norm_backward's are so already
        error = (output - wanted)[:, None] / np.float32(SAMPLES)
        back = ptxrt.to_device(np.where(active > 0, error * last, 0).astype(np.float32), device)
        gradients = ops.batch_norm_backward(
            back, hidden, w, None, None, training=True, batch_mean=mean, batch_var=var, communicator=communicator
        )
        of_hidden = gradients.grad_input.to_host()
        last = last - RATE * summed(communicator, error * active)
        first = first - RATE * summed(communicator, x[:, :, None] * of_hidden[:, None, :])
        scale = scale - RATE * gradients.grad_weight.to_host()
        shift = shift - RATE * gradients.grad_bias.to_host()
    return losses, (first, scale, shift, last, *(each.to_host() for each in running))


if __name__ == "__main__":
    device = ptxrt.default_device()
    (alone,) = Group(1, device).run(train)
    for losses, weights in Group(4, device).run(train):
        print(losses == alone[0], all(map(np.array_equal, weights, alone[1])))
    print(" ".join(f"{loss:.3f}" for loss in losses))

# prints: True True
# prints: True True
# prints: True True
# prints: True True
# prints: 0.255 0.250 0.245 0.241 0.237
