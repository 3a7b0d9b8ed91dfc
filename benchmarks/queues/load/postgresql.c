/* A table as a queue in PostgreSQL: 250 rows in one INSERT; a member deletes up to 250 that nobody else has locked, and then commits. */
#include "load.h"
#include <stdlib.h>
#include <string.h>

enum { BATCH = 250 };

static size_t begin(struct conn *conn, char type) {
    add_8(&conn->out, type);
    add_32(&conn->out, 0);
    return conn->out.length - conn->out.at - 4;
}

static void end(struct conn *conn, size_t from) {
    uint32_t size = conn->out.length - conn->out.at - from;
    char *at = conn->out.data + conn->out.at + from;
    at[0] = size >> 24, at[1] = size >> 16, at[2] = size >> 8, at[3] = size;
}

static void text(struct conn *conn, const char *words) { add(&conn->out, words, strlen(words) + 1); }

/* The message that is there whole: its type, its body; 0: none. */
static char whole(struct conn *conn, char **body, size_t *length) {
    char *data;
    size_t have = here(conn, &data);
    if (have < 5 || have < 1 + (size_t)get_32(data + 1)) return 0;
    *length = get_32(data + 1) - 4, *body = data + 5;
    conn->in.at += 5 + *length;
    if (*data == 'E') die("%.200s", *body + 1);
    return *data;
}

static void until_ready(struct conn *conn) {
    char *body, type;
    size_t length;
    send_all(conn);
    do
        while (!(type = whole(conn, &body, &length))) need(conn, conn->in.length - conn->in.at + 1);
    while (type != 'Z');
}

static void run(struct conn *conn, const char *words) {
    size_t from = begin(conn, 'Q');
    text(conn, words);
    end(conn, from);
    until_ready(conn);
}

static void parse(struct conn *conn, const char *name, const char *words) {
    size_t from = begin(conn, 'P');
    text(conn, name);
    text(conn, words);
    add_16(&conn->out, 0);
    end(conn, from);
}

static void greet(struct conn *conn) {
    size_t from = conn->out.length - conn->out.at;
    add_32(&conn->out, 0);
    add_32(&conn->out, 196608);
    text(conn, "user"), text(conn, user), text(conn, "database"), text(conn, "postgres"), text(conn, "");
    end(conn, from);
    until_ready(conn);
}

static void prepare(struct conn *conn) {
    greet(conn);
    run(conn, "CREATE TABLE orders (id bigserial PRIMARY KEY, payload bytea NOT NULL)");
}

static void execute(struct conn *conn, const char *name) {
    size_t from = begin(conn, 'B');
    text(conn, ""), text(conn, name);
    add_16(&conn->out, 0), add_16(&conn->out, 0);
    add_16(&conn->out, 1), add_16(&conn->out, 1); /* results are binary */
    end(conn, from);
    from = begin(conn, 'E');
    text(conn, "");
    add_32(&conn->out, 0);
    end(conn, from);
}

static void sync_all(struct conn *conn) { end(conn, begin(conn, 'S')); }

static void ask(struct conn *conn) {
    if (!conn->put) execute(conn, "begin");
    conn->put = 1; /* a transaction is open */
    execute(conn, "take");
    sync_all(conn);
}

static void hello(struct conn *conn) {
    if (conn->index) greet(conn);
    parse(conn, "put", "INSERT INTO orders (payload) SELECT unnest($1::bytea[])");
    parse(conn, "begin", "BEGIN");
    parse(conn, "commit", "COMMIT");
    parse(conn, "take", "DELETE FROM orders WHERE id = ANY (ARRAY (SELECT id FROM orders ORDER BY id LIMIT 250 FOR UPDATE SKIP LOCKED)) RETURNING payload");
    sync_all(conn);
    until_ready(conn);
    if (!conn->publisher) ask(conn);
}

static void put(struct conn *conn, const char *payload, size_t length) {
    add_32(&conn->tokens, length);
    add(&conn->tokens, payload, length);
    conn->token_count++;
}

static void end_puts(struct conn *conn) {
    while (conn->token_count) {
        size_t count = conn->token_count < BATCH ? conn->token_count : BATCH, length = 0;
        for (size_t at = 0; at < count; at++) length += 4 + get_32(conn->tokens.data + conn->tokens.at + length);
        size_t from = begin(conn, 'B');
        text(conn, ""), text(conn, "put");
        add_16(&conn->out, 1), add_16(&conn->out, 1);
        add_16(&conn->out, 1);
        add_32(&conn->out, 20 + length);
        add_32(&conn->out, 1), add_32(&conn->out, 0), add_32(&conn->out, 17); /* one dimension, no NULL, bytea */
        add_32(&conn->out, count), add_32(&conn->out, 1);
        add(&conn->out, conn->tokens.data + conn->tokens.at, length);
        add_16(&conn->out, 0);
        end(conn, from);
        from = begin(conn, 'E');
        text(conn, "");
        add_32(&conn->out, 0);
        end(conn, from);
        sync_all(conn);
        conn->tokens.at += length, conn->token_count -= count;
    }
    conn->tokens.at = conn->tokens.length = 0;
}

static void take(struct conn *conn) {
    char *body, type;
    size_t length;
    while ((type = whole(conn, &body, &length))) {
        if (type == 'D') {
            delivered(conn, body + 6, get_32(body + 2), "", 0);
            conn->left++;
        } else if (type == 'C' && !strncmp(body, "INSERT", 6)) {
            confirmed(conn, strtoull(body + 9, NULL, 10));
        } else if (type == 'C' && !strncmp(body, "COMMIT", 6)) {
            finished(conn->taken);
            conn->taken = 0;
        } else if (type == 'Z' && !conn->publisher) {
            if (conn->left) { /* commit, and the next ones at once */
                execute(conn, "commit");
                conn->taken += conn->left;
                conn->left = conn->put = 0;
                ask(conn);
            } else {
                conn->idle = true;
            }
        }
    }
}

static void nothing(struct conn *conn) { (void)conn; }

struct protocol postgresql = {"postgresql", BATCH, true, prepare, hello, put, end_puts, take, nothing, ask};
