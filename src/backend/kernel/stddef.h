// size_t is built in.
#ifndef GPULUA_STDDEF_H
#define GPULUA_STDDEF_H
typedef decltype((char *)0 - (char *)0) ptrdiff_t;
typedef decltype(nullptr) nullptr_t;
#ifndef NULL
#define NULL 0
#endif
#ifndef offsetof
#define offsetof(type, member) ((size_t)&((type *)0)->member)
#endif
#endif
