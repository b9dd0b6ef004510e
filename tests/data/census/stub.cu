#include <stdio.h>
extern "C" __global__ void stub(float *a) {
  printf("ERROR : Arch conditional MMA instruction used without targeting appropriate compute capability. Aborting.\n");
  __trap();
}
