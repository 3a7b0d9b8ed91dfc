/* RabbitMQ over AMQP 0-9-1: a quorum queue, publisher confirms, a prefetch of 1,000; basic.ack with `multiple`, at random one by one. */
#include "load.h"
#include <stdlib.h>
#include <string.h>

enum { METHOD = 1, HEADER = 2, BODY = 3, END = 0xce, WINDOW_SLOTS = 1 << 16 };

static size_t begin(struct conn *conn, int type, int channel) {
    add_8(&conn->out, type);
    add_16(&conn->out, channel);
    add_32(&conn->out, 0);
    return conn->out.length - conn->out.at;
}

static void end(struct conn *conn, size_t from) {
    struct bytes size = {0};
    add_32(&size, conn->out.length - conn->out.at - from);
    memcpy(conn->out.data + conn->out.at + from - 4, size.data, 4);
    free(size.data);
    add_8(&conn->out, END);
}

static void short_text(struct conn *conn, const char *text) {
    add_8(&conn->out, strlen(text));
    add(&conn->out, text, strlen(text));
}

static void long_text(struct conn *conn, const char *text, size_t length) {
    add_32(&conn->out, length);
    add(&conn->out, text, length);
}

static void method(struct conn *conn, int class, int number) {
    add_16(&conn->out, class);
    add_16(&conn->out, number);
}

/* Send what there is, and wait for the method that answers it. */
static void expect(struct conn *conn, uint32_t wanted) {
    char *data;
    send_all(conn);
    need(conn, 7);
    here(conn, &data);
    size_t size = get_32(data + 3);
    need(conn, 8 + size);
    here(conn, &data);
    if (get_32(data + 7) != wanted) die("method %08x instead of %08x: %.80s", get_32(data + 7), wanted, data + 14);
    conn->in.at += 8 + size;
}

static void declare(struct conn *conn) {
    size_t from = begin(conn, METHOD, 1);
    method(conn, 50, 10);
    add_16(&conn->out, 0);
    short_text(conn, "orders");
    add_8(&conn->out, 2); /* durable */
    long_text(conn, "\014x-queue-typeS\0\0\0\006quorum", 24);
    end(conn, from);
    expect(conn, 50 << 16 | 11);
}

static void follow(struct conn *conn) {
    size_t from = begin(conn, METHOD, 1);
    method(conn, 60, 10);
    add_32(&conn->out, 0);
    add_16(&conn->out, 1000);
    add_8(&conn->out, 0);
    end(conn, from);
    expect(conn, 60 << 16 | 11);
    from = begin(conn, METHOD, 1);
    method(conn, 60, 20);
    add_16(&conn->out, 0);
    short_text(conn, "orders");
    short_text(conn, "");
    add_8(&conn->out, 0);
    add_32(&conn->out, 0);
    end(conn, from);
    expect(conn, 60 << 16 | 21);
}

static void hello(struct conn *conn) {
    static const char plain[] = "\0guest\0guest";
    add(&conn->out, "AMQP\0\0\11\1", 8);
    expect(conn, 10 << 16 | 10);
    size_t from = begin(conn, METHOD, 0);
    method(conn, 10, 11);
    add_32(&conn->out, 0);
    short_text(conn, "PLAIN");
    long_text(conn, plain, sizeof plain - 1);
    short_text(conn, "en_US");
    end(conn, from);
    expect(conn, 10 << 16 | 30);
    from = begin(conn, METHOD, 0);
    method(conn, 10, 31);
    add_16(&conn->out, 2047);
    add_32(&conn->out, 131072);
    add_16(&conn->out, 0);
    end(conn, from);
    from = begin(conn, METHOD, 0);
    method(conn, 10, 40);
    short_text(conn, "/");
    add_16(&conn->out, 0);
    end(conn, from);
    expect(conn, 10 << 16 | 41);
    from = begin(conn, METHOD, 1);
    method(conn, 20, 10);
    add_8(&conn->out, 0);
    end(conn, from);
    expect(conn, 20 << 16 | 11);
    if (!conn->index) declare(conn);
    if (!conn->publisher) {
        follow(conn);
        return;
    }
    conn->seen = calloc(WINDOW_SLOTS, 1);
    from = begin(conn, METHOD, 1);
    method(conn, 85, 10);
    add_8(&conn->out, 0);
    end(conn, from);
    expect(conn, 85 << 16 | 11);
}

static void put(struct conn *conn, const char *payload, size_t length) {
    add(&conn->out, "\1\0\1\0\0\0\017\0\074\0\050\0\0\0\006orders\0\316", 7 + 15 + 1); /* basic.publish */
    add(&conn->out, "\2\0\1\0\0\0\017\0\074\0\0", 7 + 4);
    add_64(&conn->out, length);
    add(&conn->out, "\020\0\2\316", 4); /* persistent */
    add(&conn->out, "\3\0\1", 3);
    long_text(conn, payload, length);
    add_8(&conn->out, END);
}

static void nothing(struct conn *conn) { (void)conn; }

static void agree(struct conn *conn, uint64_t tag, bool multiple) {
    uint64_t count = 0;
    for (uint64_t at = multiple ? conn->left + 1 : tag; at <= tag; at++) count += !conn->seen[at % WINDOW_SLOTS], conn->seen[at % WINDOW_SLOTS] = 1;
    while (conn->seen[(conn->left + 1) % WINDOW_SLOTS]) conn->seen[++conn->left % WINDOW_SLOTS] = 0;
    confirmed(conn, count);
}

/* One delivery: method, header and body, each a frame. */
static size_t message(struct conn *conn, const char *data, size_t have, size_t size) {
    size_t header = 8 + size;
    if (have < header + 7) return 0;
    size_t body = header + 8 + get_32(data + header + 3);
    if (have < body + 7) return 0;
    size_t length = get_32(data + body + 3);
    if (have < body + 8 + length) return 0;
    delivered(conn, data + body + 7, length, data + 12 + (uint8_t)data[11], 8);
    return body + 8 + length;
}

static void take(struct conn *conn) {
    char *data;
    size_t have, used;
    while ((have = here(conn, &data)) >= 8 && have >= 8 + (size_t)get_32(data + 3)) {
        size_t size = get_32(data + 3);
        uint32_t which = get_32(data + 7);
        used = 8 + size;
        if (which == (60 << 16 | 80)) agree(conn, get_64(data + 11), data[19] & 1);
        else if (which != (60 << 16 | 60)) die("method %08x: %.80s", which, data + 14);
        else if (!(used = message(conn, data, have, size))) return;
        conn->in.at += used;
    }
}

static void acknowledge_one(struct conn *conn, size_t at, int multiple) {
    size_t length;
    add(&conn->out, "\1\0\1\0\0\0\015\0\074\0\120", 11);
    add(&conn->out, token(conn, at, &length), 8);
    add(&conn->out, (char[]){multiple, END}, 2);
}

static void acknowledge(struct conn *conn) {
    if (!at_random) acknowledge_one(conn, conn->token_count - 1, 1);
    for (size_t at = 0; at_random && at < conn->token_count; at++) acknowledge_one(conn, at, 0);
}

struct protocol amqp = {"amqp", 1, false, nothing, hello, put, nothing, take, acknowledge, nothing};
