// Macros that a kernel's own preprocessor conditionals and bodies may use. Read while the source is
// preprocessed, before the token pass; everything else of the shim comes after it.
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __GPULUA_CPU__ 1
// The architecture that #if __CUDA_ARCH__ sees. What compute capability 7.0 has is all here;
// sources that ask for more do so for inline PTX, tensor cores or asynchronous copies.
#define __CUDA_ARCH__ 700
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDACC_VER_BUILD__ 0
#define NULL __null

#ifdef NDEBUG
#define assert(...) ((void)0)
#else
#define assert(...)                                                                                \
    ((__VA_ARGS__) ? (void)0                                                                       \
                   : gpulua_assert_failed(#__VA_ARGS__, __FILE__, __LINE__, threadIdx))
#endif
#define __activemask() gpulua_active_mask(__LINE__)
