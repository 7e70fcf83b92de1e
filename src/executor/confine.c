/* Landlock and seccomp by their system calls: both are small, and libseccomp would be one more
 * library on machines that never have a sandbox. */
#include "executor/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "wire/memory.h"

/* ---- Landlock (linux/landlock.h, which headers of older systems do not have) ---- */

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif

#define LANDLOCK_VERSION_FLAG 1u
#define LANDLOCK_PATH_BENEATH 1

enum {
    FS_EXECUTE = 1u << 0,
    FS_WRITE_FILE = 1u << 1,
    FS_READ_FILE = 1u << 2,
    FS_READ_DIR = 1u << 3,
    FS_REMOVE_DIR = 1u << 4,
    FS_REMOVE_FILE = 1u << 5,
    FS_MAKE_DIR = 1u << 7,
    FS_MAKE_REG = 1u << 8,
    FS_ALL_1 = (1u << 13) - 1, /* of the first version */
    FS_REFER = 1u << 13,       /* 2: moving between folders */
    FS_TRUNCATE = 1u << 14,    /* 3 */
    FS_IOCTL_DEV = 1u << 15,   /* 5 */
    NET_ALL = 3u,              /* 4: binding and connecting TCP */
    SCOPE_ALL = 3u             /* 6: abstract sockets, signals to others */
};
#define FS_OF_FILES                                                                                \
    ((uint64_t)FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE | FS_IOCTL_DEV)

struct landlock_ruleset {
    uint64_t fs, net, scoped;
};
struct landlock_path {
    uint64_t allowed;
    int32_t parent_fd;
} __attribute__((packed));

struct files {
    const char *path;
    uint64_t allowed;
};

#define READ ((uint64_t)FS_READ_FILE | FS_READ_DIR)
#define RUN (READ | FS_EXECUTE)
#define WRITE                                                                                      \
    (READ | FS_WRITE_FILE | FS_REMOVE_DIR | FS_REMOVE_FILE | FS_MAKE_DIR | FS_MAKE_REG |           \
     FS_REFER | FS_TRUNCATE)

/* What is the same on every machine of a distribution. What is not there is left out. */
static const struct files kernels_files[] = {
    {"/usr/lib", READ},
    {"/usr/lib64", READ},
    {"/lib", READ},
    {"/lib64", READ},
    {"/etc/ld.so.cache", READ},
    {"/proc/cpuinfo", READ},
    {"/proc/meminfo", READ},
    {"/sys/devices/system/cpu", READ},
    {"/dev/null", FS_READ_FILE | FS_WRITE_FILE},
};
static const struct files compiler_files[] = {
    {"/usr", RUN},
    {"/lib", RUN},
    {"/lib64", RUN},
    {"/bin", RUN},
    {"/opt", RUN},
    {"/etc/ld.so.cache", READ},
    {"/etc/alternatives", READ},
    {"/proc/cpuinfo", READ},
    {"/sys/devices/system/cpu", READ},
    {"/dev/null", FS_READ_FILE | FS_WRITE_FILE},
};

static gpulua_status fail(struct wire_error *error, const char *what) {
    int number = errno;
    return gpu_wire_fail(error, GPULUA_UNSUPPORTED, number,
                         "a device cannot be confined here: %s: %s", what, strerror(number));
}

static gpulua_status file_allow(int rules, const struct files *files, uint64_t handled,
                                struct wire_error *error) {
    struct stat facts;
    struct landlock_path rule = {.parent_fd = open(files->path, O_PATH | O_CLOEXEC)};
    if (rule.parent_fd < 0) {
        return GPULUA_OK;
    }
    rule.allowed = files->allowed & handled;
    if (fstat(rule.parent_fd, &facts) == 0 && !S_ISDIR(facts.st_mode)) {
        rule.allowed &= FS_OF_FILES;
    }
    long rc = syscall(SYS_landlock_add_rule, rules, LANDLOCK_PATH_BENEATH, &rule, 0);
    gpulua_status status = rc == 0 ? GPULUA_OK : fail(error, files->path);
    close(rule.parent_fd);
    return status;
}

static gpulua_status files_confine(const struct files *list, size_t count, const char *folder,
                                   struct wire_error *error) {
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_VERSION_FLAG);
    /* Before, a process could have signals sent to others, its parent among them. */
    if (version < 6) {
        errno = version < 1 ? errno : ENOSYS;
        return fail(error, "Landlock that scopes signals (Linux 6.12, and in its list of security "
                           "modules)");
    }
    struct landlock_ruleset set = {
        .fs = FS_ALL_1 | FS_REFER | FS_TRUNCATE | FS_IOCTL_DEV,
        .net = NET_ALL,
        .scoped = SCOPE_ALL,
    };
    int rules = (int)syscall(SYS_landlock_create_ruleset, &set, sizeof set, 0);
    if (rules < 0) {
        return fail(error, "landlock_create_ruleset");
    }
    gpulua_status status = GPULUA_OK;
    for (size_t i = 0; i < count && status == GPULUA_OK; i++) {
        status = file_allow(rules, &list[i], set.fs, error);
    }
    if (status == GPULUA_OK && folder != NULL) {
        const struct files own = {folder, WRITE};
        status = file_allow(rules, &own, set.fs, error);
    }
    if (status == GPULUA_OK && syscall(SYS_landlock_restrict_self, rules, 0) != 0) {
        status = fail(error, "landlock_restrict_self");
    }
    close(rules);
    return status;
}

/* ---- system calls ---- */

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#if defined(ARCHITECTURE)

/* What kernels, the executor and the C library need. Anything else fails with EPERM. */
static const int kernels_calls[] = {
    SYS_read,
    SYS_readv,
    SYS_pread64,
    SYS_write,
    SYS_writev,
    SYS_pwrite64,
    SYS_lseek,
    SYS_close,
    SYS_dup,
    SYS_dup3,
    SYS_fstat,
    SYS_openat,
    SYS_mmap,
    SYS_munmap,
    SYS_mremap,
    SYS_mprotect,
    SYS_madvise,
    SYS_msync,
    SYS_brk,
    SYS_memfd_create,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_membarrier,
    SYS_futex,
    SYS_set_robust_list,
    SYS_get_robust_list,
    SYS_set_tid_address,
    SYS_rseq,
    SYS_gettid,
    SYS_getpid,
    SYS_exit,
    SYS_exit_group,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_getcpu,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_gettimeofday,
    SYS_getrusage,
    SYS_times,
    SYS_sysinfo,
    SYS_getrandom,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_restart_syscall,
    SYS_rt_sigtimedwait,
    SYS_ppoll,
    SYS_pselect6,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_eventfd2,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_timerfd_gettime,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_sendto,
    SYS_sendmsg,
    SYS_shutdown,
    SYS_mlock,
    SYS_munlock,
    SYS_mincore,
#if defined(__x86_64__)
    SYS_open,
    SYS_poll,
    SYS_select,
    SYS_epoll_wait,
    SYS_time,
    SYS_arch_prctl,
    SYS_dup2,
#endif
};

/* What compilers, which are programs of the system's, have no use for and somebody who has taken
 * one over would have. */
static const int compiler_refused[] = {
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_tkill,
    SYS_pidfd_open,
    SYS_pidfd_send_signal,
    SYS_io_setup,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_acct,
    SYS_quotactl,
    SYS_personality,
    SYS_name_to_handle_at,
    SYS_open_by_handle_at,
    425 /* io_uring_setup */,
    438 /* pidfd_getfd */,
};

#define FILTER_MAX 512
struct filter {
    struct sock_filter list[FILTER_MAX];
    size_t count;
};

static void add(struct filter *filter, struct sock_filter instruction) {
    if (filter->count < FILTER_MAX) {
        filter->list[filter->count] = instruction;
    }
    filter->count++;
}

#define LOAD(offset) ((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(offset)))
#define ANSWER(what) ((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, (uint32_t)(what)))
#define SKIP_UNLESS(value, count)                                                                  \
    ((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), 0, (count)))
#define NUMBER offsetof(struct seccomp_data, nr)
/* Both machines keep the low half first. */
#define LOW(argument) (offsetof(struct seccomp_data, args) + (argument)*8u)
#define HIGH(argument) (LOW(argument) + 4u)
#define REFUSED (SECCOMP_RET_ERRNO | EPERM)

static void answer_call(struct filter *filter, int number, uint32_t what) {
    add(filter, SKIP_UNLESS(number, 1));
    add(filter, ANSWER(what));
}

/* Allowed where 32 bits of an argument are that value. */
static void allow_where(struct filter *filter, int number, size_t offset, uint32_t value) {
    add(filter, SKIP_UNLESS(number, 4));
    add(filter, LOAD(offset));
    add(filter, SKIP_UNLESS(value, 1));
    add(filter, ANSWER(SECCOMP_RET_ALLOW));
    add(filter, ANSWER(REFUSED));
}

/* Where all of these bits are set. */
static void allow_with_bits(struct filter *filter, int number, size_t offset, uint32_t bits) {
    add(filter, SKIP_UNLESS(number, 5));
    add(filter, LOAD(offset));
    add(filter, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, bits));
    add(filter, SKIP_UNLESS(bits, 1));
    add(filter, ANSWER(SECCOMP_RET_ALLOW));
    add(filter, ANSWER(REFUSED));
}

static void kernels_filter(struct filter *filter) {
    for (size_t i = 0; i < sizeof kernels_calls / sizeof *kernels_calls; i++) {
        answer_call(filter, kernels_calls[i], SECCOMP_RET_ALLOW);
    }
    /* The C library makes threads by clone where this is not there; its flags can be seen. */
    answer_call(filter, SYS_clone3, SECCOMP_RET_ERRNO | ENOSYS);
    allow_with_bits(filter, SYS_clone, LOW(0), CLONE_THREAD | CLONE_VM | CLONE_SIGHAND);
    allow_where(filter, SYS_tgkill, LOW(0), (uint32_t)getpid());
    allow_with_bits(filter, SYS_newfstatat, LOW(3), AT_EMPTY_PATH); /* fstat */
    /* Limits are asked for, not set. */
    add(filter, SKIP_UNLESS(SYS_prlimit64, 6));
    add(filter, LOAD(LOW(2)));
    add(filter, SKIP_UNLESS(0, 3));
    add(filter, LOAD(HIGH(2)));
    add(filter, SKIP_UNLESS(0, 1));
    add(filter, ANSWER(SECCOMP_RET_ALLOW));
    add(filter, ANSWER(REFUSED));
    allow_where(filter, SYS_prctl, LOW(0), PR_SET_NAME);
    allow_where(filter, SYS_sched_setaffinity, LOW(0), 0);
    /* Not F_SETFL nor F_SETOWN: what is open is the parent's, too. */
    static const uint32_t commands[] = {F_GETFD, F_SETFD, F_GETFL, F_DUPFD, F_DUPFD_CLOEXEC};
    add(filter, SKIP_UNLESS(SYS_fcntl, 2 + 2 * sizeof commands / sizeof *commands));
    add(filter, LOAD(LOW(1)));
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        answer_call(filter, (int)commands[i], SECCOMP_RET_ALLOW);
    }
    add(filter, ANSWER(REFUSED));
    add(filter, ANSWER(REFUSED));
}

static void compiler_filter(struct filter *filter) {
    for (size_t i = 0; i < sizeof compiler_refused / sizeof *compiler_refused; i++) {
        answer_call(filter, compiler_refused[i], REFUSED);
    }
    add(filter, ANSWER(SECCOMP_RET_ALLOW));
}

static void filter_begin(struct filter *filter) {
    filter->count = 0;
    add(filter, LOAD(offsetof(struct seccomp_data, arch)));
    add(filter, SKIP_UNLESS(ARCHITECTURE, 1));
    add(filter, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JA, 1, 0, 0));
    add(filter, ANSWER(SECCOMP_RET_KILL_PROCESS));
    add(filter, LOAD(NUMBER));
#if defined(__x86_64__)
    /* The calls of x32 have a bit more. */
    add(filter, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 0, 1));
    add(filter, ANSWER(SECCOMP_RET_KILL_PROCESS));
#endif
}

static bool filter_install(struct filter *filter) {
    struct sock_fprog program = {(unsigned short)filter->count, filter->list};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static gpulua_status calls_confine(enum confine_role role, struct wire_error *error) {
    struct filter filter;
    filter_begin(&filter);
    if (role == CONFINE_KERNELS) {
        kernels_filter(&filter);
    } else {
        compiler_filter(&filter);
    }
    if (filter.count > FILTER_MAX) {
        errno = E2BIG;
        return fail(error, "its filter of system calls");
    }
    return filter_install(&filter) ? GPULUA_OK : fail(error, "seccomp");
}

bool gpu_confine_group(void) {
    struct filter filter;
    filter_begin(&filter);
    answer_call(&filter, SYS_setpgid, REFUSED);
    answer_call(&filter, SYS_setsid, REFUSED);
    add(&filter, ANSWER(SECCOMP_RET_ALLOW));
    return filter_install(&filter);
}

#else

static gpulua_status calls_confine(enum confine_role role, struct wire_error *error) {
    (void)role;
    errno = ENOSYS;
    return fail(error, "the system calls of this processor are not known");
}

bool gpu_confine_group(void) {
    return false;
}

#endif

/* ---- both ---- */

static void limit(int resource, rlim_t most) {
    struct rlimit old;
    if (getrlimit((__rlimit_resource_t)resource, &old) == 0) {
        rlim_t value = old.rlim_max < most ? old.rlim_max : most;
        setrlimit((__rlimit_resource_t)resource, &(struct rlimit){value, value});
    }
}

static void limits_set(enum confine_role role) {
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_NOFILE, 256);
    limit(RLIMIT_FSIZE, (rlim_t)256 << 20);
    if (role == CONFINE_COMPILER) { /* of each program that it starts */
        limit(RLIMIT_CPU, 60);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they reserve terabytes */
        limit(RLIMIT_AS, (rlim_t)4 << 30);
#endif
    }
    /* Of all processes of the machine these are the ones to do without. */
    int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t put = write(file, "1000", 4);
        (void)put;
        close(file);
    }
}

gpulua_status gpu_confine(enum confine_role role, const char *folder, struct wire_error *error) {
    limits_set(role);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        return fail(error, "no_new_privs");
    }
    const struct files *list = role == CONFINE_KERNELS ? kernels_files : compiler_files;
    size_t count = role == CONFINE_KERNELS ? sizeof kernels_files / sizeof *kernels_files
                                           : sizeof compiler_files / sizeof *compiler_files;
    gpulua_status status = files_confine(list, count, folder, error);
    return status ? status : calls_confine(role, error);
}
