/* Redis Streams: XADD, a consumer group of members that read up to 1,000 entries at a time and acknowledge what they have by one XACK. */
#include "load.h"
#include <stdlib.h>
#include <string.h>

static void prepare(struct conn *conn) {
    add_text(&conn->out, "XGROUP CREATE orders workers $ MKSTREAM\r\n");
    send_all(conn);
    char *said = wait_line(conn);
    if (said[0] != '+') die("XGROUP: %s", said);
}

static void ask(struct conn *conn) {
    add_text(&conn->out, "*11\r\n$10\r\nXREADGROUP\r\n$5\r\nGROUP\r\n$7\r\nworkers\r\n$2\r\nm%d\r\n$5\r\nCOUNT\r\n$4\r\n1000\r\n", conn->index);
    add_text(&conn->out, "$5\r\nBLOCK\r\n$1\r\n0\r\n$7\r\nSTREAMS\r\n$6\r\norders\r\n$1\r\n>\r\n");
}

static void hello(struct conn *conn) {
    if (!conn->publisher) ask(conn);
}

static void put(struct conn *conn, const char *payload, size_t length) {
    add_text(&conn->out, "*5\r\n$4\r\nXADD\r\n$6\r\norders\r\n$1\r\n*\r\n$1\r\np\r\n$%zu\r\n", length);
    add(&conn->out, payload, length);
    add(&conn->out, "\r\n", 2);
}

static void nothing(struct conn *conn) { (void)conn; }

/* The bulk string at `*at`, and the place behind it; NULL: it is not whole. */
static const char *bulk(const char *data, size_t have, size_t *at, size_t *length) {
    const char *end = memchr(data + *at, '\n', have - *at);
    if (!end) return NULL;
    if (data[*at] != '$') die("no bulk string: %.20s", data + *at);
    *length = strtoul(data + *at + 1, NULL, 10);
    size_t begin = end + 1 - data;
    if (have < begin + *length + 2) return NULL;
    *at = begin + *length + 2;
    return data + begin;
}

static bool entry(struct conn *conn) {
    char *data;
    const char *name, *payload;
    size_t have = here(conn, &data), at = 4, name_length, length;
    if (have < 4 || !(name = bulk(data, have, &at, &name_length))) return false; /* *2, the entry's name */
    if (have < at + 4 + 7) return false;                                       /* *2, $1, p */
    at += 4 + 7;
    if (!(payload = bulk(data, have, &at, &length))) return false;
    delivered(conn, payload, length, name, name_length);
    conn->in.at += at;
    conn->left--;
    return true;
}

static bool head(struct conn *conn) {
    char *data, *end;
    size_t have = here(conn, &data), whole = 4 + 4 + 4 + 8; /* *1, *2, $6, orders */
    if (!have || !(end = memchr(data, '\n', have))) return false;
    if (data[0] == ':') {
        finished(strtoull(data + 1, NULL, 10));
        conn->in.at += end + 1 - data;
        return true;
    }
    if (data[0] != '*') die("XREADGROUP: %.100s", data);
    if (have <= whole || !(end = memchr(data + whole, '\n', have - whole))) return false;
    conn->left = strtoull(data + whole + 1, NULL, 10);
    conn->in.at += end + 1 - data;
    return true;
}

static void take(struct conn *conn) {
    char *found;
    size_t length;
    if (!conn->publisher) {
        while (conn->left ? entry(conn) : head(conn)) continue;
        return;
    }
    while ((found = line(conn, &length))) {
        if (found[0] == '-') die("XADD: %.100s", found);
        confirmed(conn, found[0] == '$' ? 0 : 1); /* the length, the name */
    }
}

static void acknowledge(struct conn *conn) {
    add_text(&conn->out, "*%zu\r\n$4\r\nXACK\r\n$6\r\norders\r\n$7\r\nworkers\r\n", 3 + conn->token_count);
    for (size_t at = 0, length; at < conn->token_count; at++) {
        const char *name = token(conn, at, &length);
        add_text(&conn->out, "$%zu\r\n", length);
        add(&conn->out, name, length);
        add(&conn->out, "\r\n", 2);
    }
    if (!conn->left) ask(conn);
}

struct protocol redis = {"redis", 1, true, prepare, hello, put, nothing, take, acknowledge, nothing};
