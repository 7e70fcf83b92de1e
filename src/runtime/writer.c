#include "runtime/writer.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

void gpu_put(struct gpu_writer *writer, const char *format, ...) {
    va_list values;
    va_start(values, format);
    bool has_room = writer->length < writer->room;
    int bytes = vsnprintf(has_room ? writer->text + writer->length : NULL,
                          has_room ? writer->room - writer->length : 0, format, values);
    va_end(values);
    writer->length += bytes > 0 ? (size_t)bytes : 0;
}
