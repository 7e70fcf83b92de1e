/* Vector clocks of streams: what a stream is already behind, through others too.
 *
 * Per slot, `waited` is the newest seq that all further work of the stream comes after. When the
 * stream waits for an operation, it is also behind all that this operation was behind; so a stream
 * remembers by which of its operations its clock grew (`known`, the newest GPU_KNOWN_MAX steps).
 * What is forgotten is waited for once more, never left out. */
#include "runtime/state.h"

static void learn(struct gpu_stream *stream, uint64_t at_seq, struct gpu_point point) {
    if (point.slot == stream->slot || stream->waited[point.slot] >= point.seq) {
        return;
    }
    stream->waited[point.slot] = point.seq;
    stream->known[stream->known_count++ % GPU_KNOWN_MAX] =
        (struct gpu_known){.at_seq = at_seq, .point = point};
}

static uint64_t oldest_known(const struct gpu_stream *stream) {
    return stream->known_count > GPU_KNOWN_MAX ? stream->known_count - GPU_KNOWN_MAX : 0;
}

void gpu_clock_wait(struct gpu_stream *stream, uint64_t at_seq, struct gpu_point point) {
    const struct gpu_stream *other = stream->device->streams[point.slot];
    uint64_t before = stream->waited[point.slot];
    learn(stream, at_seq, point);
    if (!other || other == stream) {
        return;
    }
    /* What it knew by `before` is known here since then. */
    for (uint64_t i = other->known_count; i > oldest_known(other); i--) {
        const struct gpu_known *known = &other->known[(i - 1) % GPU_KNOWN_MAX];
        if (known->at_seq <= before) {
            break;
        }
        if (known->at_seq <= point.seq) {
            learn(stream, at_seq, known->point);
        }
    }
}

bool gpu_clock_covers(const struct gpu_device *device, struct gpu_point through,
                      struct gpu_point point) {
    /* A later stream in the same slot knows nothing of seqs as old as `through`. */
    const struct gpu_stream *stream = device->streams[through.slot];
    if (!stream || stream->waited[point.slot] < point.seq) {
        return false;
    }
    for (uint64_t i = stream->known_count; i > oldest_known(stream); i--) {
        const struct gpu_known *known = &stream->known[(i - 1) % GPU_KNOWN_MAX];
        if (known->point.slot == point.slot && known->at_seq <= through.seq) {
            return known->point.seq >= point.seq;
        }
    }
    return false;
}
