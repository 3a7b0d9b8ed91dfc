/* NATS JetStream: PUB with a reply that says it is kept, a pull consumer that the members share, +ACK of each message. */
#include "load.h"
#include <stdlib.h>
#include <string.h>

enum { PULL = 500 };

static void greet(struct conn *conn) {
    wait_line(conn);
    add_text(&conn->out, "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\nPING\r\n");
    send_all(conn);
    char *said = wait_line(conn);
    if (strcmp(said, "PONG")) die("CONNECT: %s", said);
}

static void ask_api(struct conn *conn, const char *what, const char *body) {
    add_text(&conn->out, "PUB $JS.API.%s _INBOX.api.1 %zu\r\n%s\r\n", what, strlen(body), body);
    send_all(conn);
    wait_line(conn);
    char *said = wait_line(conn);
    if (strstr(said, "\"error\"")) die("%s: %s", what, said);
}

static void prepare(struct conn *conn) {
    greet(conn);
    add_text(&conn->out, "SUB _INBOX.api.* 9\r\n");
    ask_api(conn, "STREAM.CREATE.ORDERS", "{\"name\":\"ORDERS\",\"subjects\":[\"orders\"],\"storage\":\"file\"}");
    ask_api(conn, "CONSUMER.DURABLE.CREATE.ORDERS.workers",
            "{\"stream_name\":\"ORDERS\",\"config\":{\"durable_name\":\"workers\",\"ack_policy\":\"explicit\",\"max_ack_pending\":65536}}");
}

static void ask(struct conn *conn) {
    static const char body[] = "{\"batch\":500,\"expires\":3600000000000}";
    add_text(&conn->out, "PUB $JS.API.CONSUMER.MSG.NEXT.ORDERS.workers _INBOX.m%d %zu\r\n%s\r\n", conn->index, sizeof body - 1, body);
}

static void hello(struct conn *conn) {
    if (conn->index) greet(conn);
    if (conn->publisher) {
        add_text(&conn->out, "SUB _INBOX.p%d 1\r\n", conn->index);
        return;
    }
    add_text(&conn->out, "SUB _INBOX.m%d 1\r\n", conn->index);
    ask(conn), ask(conn);
}

static void put(struct conn *conn, const char *payload, size_t length) {
    add_text(&conn->out, "PUB orders _INBOX.p%d %zu\r\n", conn->index, length);
    add(&conn->out, payload, length);
    add(&conn->out, "\r\n", 2);
}

static void nothing(struct conn *conn) { (void)conn; }

/* One line, with the payload that follows MSG and HMSG; false: it is not whole. */
static bool one(struct conn *conn) {
    char *found, *words[6];
    size_t length, count = 0, begin = conn->in.at;
    if (!(found = line(conn, &length))) return false;
    if (!strncmp(found, "PING", 4)) {
        add_text(&conn->out, "PONG\r\n");
        return true;
    }
    if (strncmp(found, "MSG", 3) && strncmp(found, "HMSG", 4)) die("%.*s", (int)length, found);
    for (char *at = found, *end = found + length; at < end && count < 6; at++) {
        words[count++] = at;
        while (at < end && *at != ' ') at++;
    }
    size_t size = strtoul(words[count - 1], NULL, 10);
    char *payload;
    if (here(conn, &payload) < size + 2) {
        conn->in.at = begin;
        return false;
    }
    conn->in.at += size + 2;
    if (found[0] == 'H') die("a status: %.*s", (int)size, payload);
    if (conn->publisher) {
        if (size < 10 || memcmp(payload, "{\"stream\"", 9)) die("%.*s", (int)size, payload);
        confirmed(conn, 1);
    } else if (count == 5) {
        delivered(conn, payload, size, words[3], words[4] - words[3] - 1);
        if (++conn->taken % PULL == 0) conn->left++;
    }
    return true;
}

static void take(struct conn *conn) {
    while (one(conn)) continue;
}

static void acknowledge(struct conn *conn) {
    for (size_t at = 0, length; at < conn->token_count; at++) {
        const char *subject = token(conn, at, &length);
        add(&conn->out, "PUB ", 4);
        add(&conn->out, subject, length);
        add(&conn->out, " 4\r\n+ACK\r\n", 10);
    }
    for (; conn->left; conn->left--) ask(conn);
}

struct protocol nats = {"nats", 1, false, prepare, hello, put, nothing, take, acknowledge, nothing};
