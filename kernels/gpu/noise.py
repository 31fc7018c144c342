"""The noise of `kernels.operations.noise` in Triton kernels: the same integers, and the C kernel's logarithm.

`tl.log` differs between the libraries that Triton takes it from. This one differs from the C kernel's only by the
rounding of fused multiply-adds.
"""

import triton
import triton.language as tl

GOLDEN_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
MIX_A = tl.constexpr(0xBF58476D1CE4E5B9)
MIX_B = tl.constexpr(0x94D049BB133111EB)
LOWBIAS_A = tl.constexpr(0x7FEB352D)
LOWBIAS_B = tl.constexpr(0x846CA68B)
LN_2 = tl.constexpr(0.6931471805599453)
LN_2_OF_BITS = tl.constexpr(0.6931471805599453 * 2.0**-23)
LARGEST_BELOW_ONE = tl.constexpr(1.0 - 2.0**-24)


@triton.jit
def row_key(seed, position):
    """Returns the 64-bit key (uint64) of a row's noise from its seed and the token's position (int64)."""
    return _mix64(_mix64(seed.to(tl.uint64, bitcast=True)) + position.to(tl.uint64, bitcast=True))


@triton.jit
def exponential_noise(key, tokens):
    """Returns the draw from the exponential distribution (float32) of each token (int32)."""
    uniform = tl.minimum(_uniform(key, tokens), LARGEST_BELOW_ONE)
    # log(1 - u) loses a small u; Kahan's correction restores it.
    other = 1.0 - uniform
    lost = 1.0 - other
    return tl.where(lost == 0.0, uniform, -logarithm(other) * (uniform / tl.where(lost == 0.0, 1.0, lost)))


@triton.jit
def least_log_noise(key, tokens):
    """Returns a lower bound of the logarithm of `exponential_noise`, up to rounding (1e-5).

    It is at most 0.06 below for small noise, such as that of drawn tokens: -log(1 - u) is not below u, and a logarithm
    not below the line between the neighbouring powers of 2.
    """
    bits = _uniform(key, tokens).to(tl.int32, bitcast=True)
    return bits.to(tl.float32) * LN_2_OF_BITS - 127.0 * LN_2


@triton.jit
def _uniform(key, tokens):
    """Returns numbers above 0, at most 1."""
    low, high = key.to(tl.uint32), (key >> 32).to(tl.uint32)
    hashed = _lowbias32(_lowbias32(tokens.to(tl.uint32) ^ low) ^ high)
    return ((hashed & 0x7FFFFFFF).to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10


@triton.jit
def logarithm(x):
    """The natural logarithm of positive normal numbers. Cephes' polynomial, relative error about 1e-7."""
    bits = x.to(tl.int32, bitcast=True) - 0x3F3504F3  # sqrt(1/2): the mantissa lies around 1
    exponent = (bits >> 23).to(tl.float32)
    f = ((bits & 0x007FFFFF) + 0x3F3504F3).to(tl.float32, bitcast=True) - 1.0
    square = f * f
    p = f * 7.0376836292e-2 - 1.1514610310e-1
    p = p * f + 1.1676998740e-1
    p = p * f - 1.2420140846e-1
    p = p * f + 1.4249322787e-1
    p = p * f - 1.6668057665e-1
    p = p * f + 2.0000714765e-1
    p = p * f - 2.4999993993e-1
    p = p * f + 3.3333331174e-1
    p = p * f * square - 2.12194440e-4 * exponent - 0.5 * square
    return f + p + 0.693359375 * exponent


@triton.jit
def _lowbias32(x):
    x = (x ^ (x >> 16)) * LOWBIAS_A
    x = (x ^ (x >> 15)) * LOWBIAS_B
    return x ^ (x >> 16)


@triton.jit
def _mix64(x):
    x = x + GOLDEN_GAMMA
    x = (x ^ (x >> 30)) * MIX_A
    x = (x ^ (x >> 27)) * MIX_B
    return x ^ (x >> 31)
