// Kernels whose resources are known: what a test asks of the kernel reader is in the name.
__device__ __noinline__ float helper(float *p, int n) {
  float kept[16];
  for (int i = 0; i < 16; i++) kept[i] = p[i * n];
  float sum = 0;
  for (int i = 0; i < n; i++) sum += kept[(i * 7) & 15];
  return sum;
}
extern "C" __global__ void adds(float *a, const float *b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) a[i] += b[i];
}
extern "C" __global__ void calls_a_function(float *a, int n) { a[threadIdx.x] = helper(a, n); }
extern "C" __global__ void emptied_by_a_guard(float *a) {
#if __CUDA_ARCH__ < 900
  a[0] = 1;
#endif
}
extern "C" __global__ void only_dependent_launch(float *a) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
extern "C" __global__ void stores_zero(float *a) { a[0] = 0; }
extern "C" __global__ void only_traps(float *a) { __trap(); }
extern "C" __global__ void uses_shared(float *a) {
  __shared__ float s[256];
  s[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  a[threadIdx.x] = s[255 - threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(1024, 1) spills(float *a) {
  float v[64];
#pragma unroll
  for (int i = 0; i < 64; i++) v[i] = a[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; i++) a[i * 1024 + threadIdx.x] = v[63 - i] * v[(i * 7) & 63] + v[(i * 11 + 3) & 63];
}
extern "C" __global__ void reduces_by_multicast(float *a) {
#if __CUDA_ARCH__ >= 900
  float r;
  asm volatile("multimem.ld_reduce.global.add.f32 %0, [%1];" : "=f"(r) : "l"(a));
  a[0] = r;
#endif
}
