/* PNG and JPEG codecs for lua/gpulua/image.lua. */
#ifndef GPU_BINDING_IMAGE_H
#define GPU_BINDING_IMAGE_H

typedef struct lua_State lua_State;

/* Leaves one table: decode(bytes) -> pixels, width, height, channels, or nil, message;
 * encode_png(pixels, width, height, channels) -> bytes, or nil, message. */
int luaopen_gpulua_image_core(lua_State *L);

#endif
