// Modules with frames that are large for a thread's stack are compiled with a call at the begin of each
// function (-finstrument-functions): two such frames are more than a stack has, and what the second
// leaves unwritten would reach over into the next thread's unseen.
#ifndef GPULUA_STACK_H
#define GPULUA_STACK_H

#ifndef GPULUA_CHECKED // which has this itself
#undef GPULUA_CHECK_FLAG
#define GPULUA_CHECK_FLAG (&gpulua_check_flag)
static unsigned gpulua_check_flag = 0;
#endif

extern "C" {
__attribute__((used, noinline, visibility("hidden"), no_sanitize("thread"), no_instrument_function))
void __cyg_profile_func_enter(void *, void *) {
    if (gpulua_check_flag != 0) {
        unsigned long frame = (unsigned long)__builtin_frame_address(0);
        cpu_context *context =
            reinterpret_cast<cpu_context *>(frame & ~(CPU_REGION_BYTES - 1));
        context->services->frame(context, reinterpret_cast<void *>(frame));
    }
}
__attribute__((used, noinline, visibility("hidden"), no_sanitize("thread"), no_instrument_function))
void __cyg_profile_func_exit(void *, void *) {}
}

#endif
