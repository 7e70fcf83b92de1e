/* Deflate, both ways, and CRC-32, for lua/gpulua/zip.lua. */
#ifndef GPU_BINDING_DEFLATE_H
#define GPU_BINDING_DEFLATE_H

typedef struct lua_State lua_State;

/* Leaves one table:
 * crc32(bytes, crc) -> crc of what `crc` (0 at first) stands for and these bytes behind it;
 * deflater() -> object: press(bytes, is_last) -> compressed bytes, maybe none yet, or nil, message;
 * inflater() -> object: give(bytes), once what was given before is used up; take(byte_count) -> at
 * most so many bytes, is this the end?, how many given bytes are not used, or nil, message. Fewer
 * bytes than asked for: more have to be given, or it is the end.
 * The objects have `close`. No call waits. */
int luaopen_gpulua_deflate_core(lua_State *L);

#endif
