/* An HTTP service on libuv's loop: each request is a task that runs the script's function `handle`,
 * which may wait for the device; the loop goes on meanwhile.
 *
 *   ./libuv SCRIPT [PORT]       GET /path?query   ->   status, body = handle("path", "query")
 *
 * What is here of HTTP/1.1 is what the example needs: GET without bodies, connections that stay
 * open, one request of a connection at a time; those of HTTP/1.0 end with their answer. SIGINT and
 * SIGTERM end it. */
#include <gpulua.h>
#include <lauxlib.h>
#include <lua.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#define REQUEST_BYTES_MAX 8192

struct server {
    gpulua *g;
    uv_loop_t loop;
    uv_tcp_t tcp;
    uv_poll_t poll;       /* the object has something to do */
    uv_timer_t timer;     /* or wants to be asked at a time */
    uv_prepare_t prepare; /* before each wait of the loop */
    uv_signal_t signals[2];
    int failures; /* nobody waits for what failed: told by on_error */
};

struct connection {
    uv_tcp_t tcp; /* first */
    struct server *server;
    int holds;   /* by the loop until it is closed, and by a task that has not answered */
    int is_busy; /* a task has a request of it */
    int is_last; /* which is the last */
    size_t in_bytes;
    char in[REQUEST_BYTES_MAX + 1];
};

struct answer {
    uv_write_t write; /* first */
    struct connection *connection;
    int is_last;
    char bytes[];
};

static void on_error(void *user, const gpulua_error *error) {
    struct server *server = user;
    server->failures++;
    fprintf(stderr, "libuv: %s\n", error->message);
}

/* ---- the loop ---- */

static void turn(struct server *server) {
    if (gpulua_step(server->g, 0) < 0) {
        on_error(server, gpulua_last_error(server->g));
    }
}

static void on_poll(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    turn(poll->data);
}

static void on_timer(uv_timer_t *timer) {
    turn(timer->data);
}

/* Asked before each wait, as gpulua_timeout_ms wants it. */
static void on_prepare(uv_prepare_t *prepare) {
    struct server *server = prepare->data;
    int timeout_ms = gpulua_timeout_ms(server->g);
    if (timeout_ms < 0) {
        uv_timer_stop(&server->timer);
    } else {
        uv_timer_start(&server->timer, on_timer, (uint64_t)timeout_ms, 0);
    }
}

/* ---- connections ---- */

static void release(struct connection *connection) {
    if (--connection->holds == 0) {
        free(connection);
    }
}

static void on_closed(uv_handle_t *handle) {
    release((struct connection *)handle);
}

static void close_connection(struct connection *connection) {
    if (!uv_is_closing((uv_handle_t *)connection)) {
        uv_close((uv_handle_t *)connection, on_closed);
    }
}

static void next_request(struct connection *connection);

static void on_written(uv_write_t *write, int status) {
    struct answer *answer = (struct answer *)write;
    struct connection *connection = answer->connection;
    if (status < 0 || answer->is_last) {
        close_connection(connection);
    } else {
        connection->is_busy = 0;
        next_request(connection);
    }
    free(answer);
}

/* Answers what the connection is busy with, if somebody is still there. */
static void respond(struct connection *connection, int status, const char *body, size_t body_bytes,
                    int is_last) {
    struct answer *answer = malloc(sizeof *answer + 128 + body_bytes);
    if (!answer || uv_is_closing((uv_handle_t *)connection)) {
        free(answer);
        close_connection(connection);
        return;
    }
    int head_bytes = snprintf(answer->bytes, 128, "HTTP/1.1 %d %s\r\nContent-Length: %zu\r\n%s\r\n",
                              status, status == 200 ? "OK" : "Not OK", body_bytes,
                              is_last ? "Connection: close\r\n" : "");
    memcpy(answer->bytes + head_bytes, body, body_bytes);
    answer->connection = connection;
    answer->is_last = is_last;
    uv_buf_t out = uv_buf_init(answer->bytes, (unsigned)((size_t)head_bytes + body_bytes));
    if (uv_write(&answer->write, (uv_stream_t *)connection, &out, 1, on_written) != 0) {
        free(answer);
        close_connection(connection);
    }
}

/* ---- requests ---- */

/* What the task of a request has of its connection: upvalue 1 of `reply`, emptied by the answer. */
static struct connection *take(lua_State *L, int index) {
    struct connection **held = lua_touserdata(L, index);
    struct connection *connection = *held;
    *held = NULL;
    return connection;
}

/* reply(status, body) */
static int reply(lua_State *L) {
    int status = (int)luaL_checkinteger(L, 1);
    size_t body_bytes;
    const char *body = luaL_checklstring(L, 2, &body_bytes);
    luaL_argcheck(L, status >= 200 && status <= 599, 1, "a status of HTTP expected");
    struct connection *connection = take(L, lua_upvalueindex(1));
    if (connection) {
        respond(connection, status, body, body_bytes, connection->is_last);
        release(connection);
    }
    return 0;
}

/* The task was dropped without an answer. */
static int drop(lua_State *L) {
    struct connection *connection = take(L, 1);
    if (connection) {
        close_connection(connection);
        release(connection);
    }
    return 0;
}

struct request {
    struct connection *connection;
    const char *path, *query;
};

/* Protected: there may be no memory. Leaves serve, reply, the path, the query. */
static int prepare_task(lua_State *L) {
    struct request *request = lua_touserdata(L, 1);
    lua_getglobal(L, "serve");
    struct connection **held = lua_newuserdatauv(L, sizeof *held, 0);
    *held = NULL;
    if (luaL_newmetatable(L, "connection")) {
        lua_pushcfunction(L, drop);
        lua_setfield(L, -2, "__gc");
    }
    lua_setmetatable(L, -2);
    lua_pushvalue(L, -1);
    lua_insert(L, 2);
    lua_pushcclosure(L, reply, 1);
    lua_pushstring(L, request->path);
    lua_pushstring(L, request->query);
    *held = request->connection;
    request->connection->holds++;
    return 4;
}

static void serve(struct connection *connection, const char *path, const char *query) {
    struct server *server = connection->server;
    lua_State *L = gpulua_state(server->g);
    struct request request = {connection, path, query};
    lua_pushcfunction(L, prepare_task);
    lua_pushlightuserdata(L, &request);
    if (lua_pcall(L, 1, 4, 0) != LUA_OK) {
        lua_pop(L, 1);
        respond(connection, 503, "", 0, 1);
    } else if (gpulua_load_function(server->g, 3) != GPULUA_OK) {
        on_error(server, gpulua_last_error(server->g)); /* `drop` closes the connection */
    }
}

/* Begins with the next request that is there as a whole. */
static void next_request(struct connection *connection) {
    char *end = strstr(connection->in, "\r\n\r\n");
    if (connection->is_busy || uv_is_closing((uv_handle_t *)connection)) {
        return;
    }
    if (!end) {
        if (connection->in_bytes == REQUEST_BYTES_MAX) {
            connection->is_busy = 1;
            respond(connection, 431, "", 0, 1);
        }
        return;
    }
    connection->is_busy = 1;
    char *target = connection->in + 4;
    size_t target_bytes = strcspn(target, " \r");
    const char *version = target + target_bytes;
    connection->is_last = strncmp(version, " HTTP/1.0\r\n", 11) == 0;
    if (strncmp(connection->in, "GET /", 5) != 0 ||
        (!connection->is_last && strncmp(version, " HTTP/1.1\r\n", 11) != 0)) {
        respond(connection, 400, "", 0, 1);
        return;
    }
    target[target_bytes] = '\0';
    char *query = strchr(target, '?');
    if (query) {
        *query++ = '\0';
    }
    serve(connection, target + 1, query ? query : "");
    end += 4;
    connection->in_bytes -= (size_t)(end - connection->in);
    memmove(connection->in, end, connection->in_bytes + 1);
}

static void on_room(uv_handle_t *handle, size_t wanted, uv_buf_t *room) {
    struct connection *connection = (struct connection *)handle;
    (void)wanted;
    *room = uv_buf_init(connection->in + connection->in_bytes,
                        (unsigned)(REQUEST_BYTES_MAX - connection->in_bytes));
}

static void on_read(uv_stream_t *stream, ssize_t byte_count, const uv_buf_t *room) {
    struct connection *connection = (struct connection *)stream;
    (void)room;
    if (byte_count < 0) { /* also where there is no room: more requests than one may wait */
        close_connection(connection);
        return;
    }
    connection->in_bytes += (size_t)byte_count;
    connection->in[connection->in_bytes] = '\0';
    next_request(connection);
}

static void on_connection(uv_stream_t *listener, int status) {
    struct server *server = listener->data;
    struct connection *connection = status < 0 ? NULL : calloc(1, sizeof *connection);
    if (!connection) {
        return;
    }
    connection->server = server;
    connection->holds = 1;
    uv_tcp_init(&server->loop, &connection->tcp);
    if (uv_accept(listener, (uv_stream_t *)connection) != 0 ||
        uv_read_start((uv_stream_t *)connection, on_room, on_read) != 0) {
        close_connection(connection);
    }
}

/* ---- beginning and end ---- */

static void on_signal(uv_signal_t *handle, int number) {
    (void)number;
    uv_stop(handle->loop);
}

static void close_handle(uv_handle_t *handle, void *user) {
    struct server *server = user;
    if (handle->type == UV_TCP && handle != (uv_handle_t *)&server->tcp) {
        close_connection((struct connection *)handle);
    } else if (!uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

static int listen_on(struct server *server, int port) {
    struct sockaddr_storage name;
    int name_bytes = sizeof name;
    uv_ip4_addr("127.0.0.1", port, (struct sockaddr_in *)&name);
    uv_tcp_init(&server->loop, &server->tcp);
    server->tcp.data = server;
    int status = uv_tcp_bind(&server->tcp, (struct sockaddr *)&name, 0);
    status = status ? status : uv_listen((uv_stream_t *)&server->tcp, 128, on_connection);
    status =
        status ? status : uv_tcp_getsockname(&server->tcp, (struct sockaddr *)&name, &name_bytes);
    if (status) {
        fprintf(stderr, "libuv: port %d: %s\n", port, uv_strerror(status));
        return 0;
    }
    printf("http://127.0.0.1:%d/\n", ntohs(((struct sockaddr_in *)&name)->sin_port));
    fflush(stdout);
    return 1;
}

static void watch(struct server *server) {
    static const int numbers[2] = {SIGINT, SIGTERM};
    uv_poll_init(&server->loop, &server->poll, gpulua_pollfd(server->g));
    uv_timer_init(&server->loop, &server->timer);
    uv_prepare_init(&server->loop, &server->prepare);
    server->poll.data = server->timer.data = server->prepare.data = server;
    uv_poll_start(&server->poll, UV_READABLE, on_poll);
    uv_prepare_start(&server->prepare, on_prepare);
    for (int i = 0; i < 2; i++) {
        uv_signal_init(&server->loop, &server->signals[i]);
        uv_signal_start(&server->signals[i], on_signal, numbers[i]);
    }
}

/* Runs the script to its end: it defines `handle`. */
static int load(struct server *server, const char *path) {
    static const char serve_source[] =
        "local reply, path, query = ...\n"
        "local ok, status, body = pcall(handle, path, query)\n"
        "if ok then reply(status, body) else reply(500, 'failed\\n') error(status, 0) end\n";
    lua_State *L = gpulua_state(server->g);
    if (luaL_loadbuffer(L, serve_source, sizeof serve_source - 1, "=serve") != LUA_OK) {
        return 0;
    }
    lua_setglobal(L, "serve");
    if (gpulua_load_file(server->g, path) != GPULUA_OK) {
        on_error(server, gpulua_last_error(server->g));
        return 0;
    }
    while (gpulua_step(server->g, -1) > 0) {}
    return server->failures == 0;
}

int main(int argc, char **argv) {
    struct server server = {0};
    gpulua_config config;
    gpulua_config_init(&config);
    config.on_error = on_error;
    config.user = &server;
    server.g = argc > 1 ? gpulua_new(&config) : NULL;
    if (!server.g) {
        fprintf(stderr, "libuv: %s\n",
                argc > 1 ? gpulua_last_error(NULL)->message : "usage: libuv SCRIPT [PORT]");
        return 1;
    }
    signal(SIGPIPE, SIG_IGN); /* clients may go at any time */
    uv_loop_init(&server.loop);
    int is_up = load(&server, argv[1]) && listen_on(&server, argc > 2 ? atoi(argv[2]) : 8080);
    if (is_up) {
        watch(&server);
        uv_run(&server.loop, UV_RUN_DEFAULT);
    }
    uv_walk(&server.loop, close_handle, &server); /* no longer watched, nothing more comes */
    gpulua_close(server.g);                       /* tasks let go of their connections */
    uv_run(&server.loop, UV_RUN_DEFAULT);
    return uv_loop_close(&server.loop) != 0 || !is_up;
}
