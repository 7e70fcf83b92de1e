/* Libraries that stand in for those of a GPU, built by the test that uses them. */
#ifndef SPEC_BACKEND_FAKE_H
#define SPEC_BACKEND_FAKE_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/gpulua-cuda-test-XXXXXX"; /* of the test, once mkdtemp has made it */

/* Once; false: there is none. */
static inline bool make_folder(void) {
    return strstr(folder, "XXXXXX") == NULL || mkdtemp(folder) != NULL;
}

/* `name`.c of this folder as a shared library; its path in `library`. NULL: it cannot be. */
static inline void *build_fake(const char *name, char library[256]) {
    char command[1024], source[512];
    const char *compiler = getenv("CC");
    snprintf(library, 256, "%s/%s.so", folder, name);
    snprintf(source, sizeof source, "%s", __FILE__);
    char *slash = strrchr(source, '/');
    snprintf(slash != NULL ? slash + 1 : source, 32, "%s.c", name);
    snprintf(command, sizeof command, "%s -std=gnu11 -D_GNU_SOURCE -O1 -shared -fPIC -o %s %s",
             compiler != NULL && compiler[0] != '\0' ? compiler : "cc", library, source);
    return system(command) == 0 ? dlopen(library, RTLD_NOW | RTLD_LOCAL) : NULL;
}

/* At the end. */
static inline void remove_folder(void) {
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0) {
        printf("# %s is left behind\n", folder);
    }
}

#endif
