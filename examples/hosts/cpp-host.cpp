// A host in C++: handles that end by themselves, statuses as exceptions, functions of the host that
// scripts call. C++11 is enough.
#include <gpulua.h>
#include <lua.hpp>

#include <cmath>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

// What gpulua refuses: its code, and what to do.
class Error : public std::runtime_error {
  public:
    explicit Error(const gpulua_error &error)
        : std::runtime_error(error.message), code(error.code), hint(error.hint) {}
    gpulua_status code;
    std::string hint;
};

struct Close {
    void operator()(gpulua *g) const { gpulua_close(g); }
};
struct Release {
    void operator()(gpulua_buffer *buffer) const { gpulua_buffer_release(buffer); }
};
using Buffer = std::unique_ptr<gpulua_buffer, Release>;

// The stack is as before when this ends, however it ends.
class Balance {
  public:
    explicit Balance(lua_State *state) : L(state), top(lua_gettop(state)) {}
    ~Balance() { lua_settop(L, top); }
    Balance(const Balance &) = delete;
    Balance &operator=(const Balance &) = delete;

  private:
    lua_State *L;
    int top;
};

class Pipeline {
  public:
    Pipeline() {
        gpulua_config config;
        gpulua_config_init(&config);
        config.on_error = &Pipeline::note;
        config.user = this;
        g.reset(gpulua_new(&config));
        if (!g) {
            throw Error(*gpulua_last_error(nullptr));
        }
    }

    // A function of the host's that scripts call by that name.
    void offer(const char *name, double (*function)(double)) {
        lua_pushlightuserdata(state(), reinterpret_cast<void *>(function));
        lua_pushcclosure(state(), &Pipeline::call, 1);
        lua_setglobal(state(), name);
    }

    // Runs a chunk to its end, with all tasks that it starts. Throws the first error.
    void run(const std::string &chunk) {
        errors.clear();
        if (luaL_loadbuffer(state(), chunk.data(), chunk.size(), "=chunk") != LUA_OK) {
            std::string message = lua_tostring(state(), -1);
            lua_pop(state(), 1);
            throw std::runtime_error(message);
        }
        check(gpulua_load_function(g.get(), 0));
        while (gpulua_step(g.get(), -1) > 0) {}
        if (!errors.empty()) {
            throw errors.front();
        }
    }

    Buffer buffer(const char *global) {
        Balance balance(state());
        gpulua_buffer *made = nullptr;
        lua_getglobal(state(), global);
        check(gpulua_to_buffer(state(), -1, &made));
        return Buffer(made);
    }

    // Its elements as the host's, which it waits for. Of host buffers, on every device.
    template <typename T> std::vector<T> elements(const Buffer &buffer) {
        gpulua_buffer_info info;
        void *bytes = nullptr;
        gpulua_buffer_describe(buffer.get(), &info);
        check(gpulua_buffer_map(g.get(), buffer.get(), GPULUA_READ, &bytes));
        const T *first = static_cast<const T *>(bytes);
        return std::vector<T>(first, first + info.elem_count);
    }

  private:
    std::unique_ptr<gpulua, Close> g;
    std::vector<Error> errors;

    lua_State *state() { return gpulua_state(g.get()); }

    void check(gpulua_status status) {
        if (status != GPULUA_OK) {
            throw Error(*gpulua_last_error(g.get()));
        }
    }

    // No exception leaves what C calls.
    static void note(void *user, const gpulua_error *error) {
        try {
            static_cast<Pipeline *>(user)->errors.push_back(Error(*error));
        } catch (const std::bad_alloc &) {}
    }

    // An exception becomes an error of the script. Lua's errors may jump: nothing with a destructor
    // is here then, and no exception is under way.
    static int call(lua_State *L) {
        double (*function)(double) =
            reinterpret_cast<double (*)(double)>(lua_touserdata(L, lua_upvalueindex(1)));
        double argument = luaL_checknumber(L, 1);
        char message[256];
        try {
            lua_pushnumber(L, function(argument));
            return 1;
        } catch (const std::exception &exception) {
            std::snprintf(message, sizeof message, "%s", exception.what());
        }
        return luaL_error(L, "%s", message);
    }
};

static double root(double x) {
    if (x < 0) {
        throw std::domain_error("root of a negative number");
    }
    return std::sqrt(x);
}

int main() {
    try {
        Pipeline pipeline;
        pipeline.offer("root", root);
        pipeline.run("gpu = require 'gpulua'\n"
                     "dev = gpu.device()\n"
                     "local x = dev:upload('f32', { 1, 2, 3, 4 })\n"
                     "local y = gpu.map('k * x * x', { x = x, k = root(16) })\n"
                     "result = dev:host('f32', 4):copy(y)\n");
        Buffer result = pipeline.buffer("result");
        for (float element : pipeline.elements<float>(result)) {
            std::cout << element << ' ';
        }
        std::cout << '\n';

        for (const char *chunk : {"root(-1)", "dev:buffer('f33', 4)", "x ="}) {
            try {
                pipeline.run(chunk);
            } catch (const std::runtime_error &error) {
                std::cout << error.what() << '\n';
            }
        }
        try {
            pipeline.buffer("nothing");
        } catch (const Error &error) {
            std::cout << gpulua_status_name(error.code) << ": " << error.what() << " ("
                      << error.hint << ")\n";
        }
    } catch (const std::exception &exception) {
        std::cerr << "cpp-host: " << exception.what() << '\n';
        return 1;
    }
}
