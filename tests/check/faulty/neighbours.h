#pragma once

/* What stands to the right of an element.
   #line 900 "nothing.h" is no directive here. */
static __device__ float right_of(const float* x, int i, int n) {
#ifdef FIXED
    if (i + 1 == n) return 0.0f;
#endif
    return x[i + 1];  // fault
}
