/* MQTT: PUBLISH of QoS 1 to $queue/orders, a subscription of each member, PUBACK both ways. 3.1.1; with properties it is version 5. */
/* reorders: members say that they order what they have by priority; they acknowledge all that has come at once. */
#include "load.h"
#include <string.h>

static const char TOPIC[] = "$queue/orders";
static bool five, reorders;
static const char REORDERS[] = "\x15\x26\x00\x0fmqmesh-reorders\x00\x01" "1";

static void add_length(struct bytes *to, size_t length) {
    do {
        add_8(to, (length & 127) | (length > 127 ? 128 : 0));
        length >>= 7;
    } while (length);
}

static void add_string(struct bytes *to, const char *text) {
    add_16(to, strlen(text));
    add(to, text, strlen(text));
}

static void hello(struct conn *conn) {
    char name[16];
    name[0] = conn->publisher ? 'p' : 'm', name[1] = '0' + conn->index, name[2] = 0;
    add_8(&conn->out, 0x10);
    add_length(&conn->out, 14 + five);
    add_string(&conn->out, "MQTT");
    add(&conn->out, five ? "\5\2\0\0\0" : "\4\2\0\0", 4 + five);
    add_string(&conn->out, name);
    send_all(conn);
    need(conn, 2);
    char *data;
    here(conn, &data);
    need(conn, 2 + data[1]);
    here(conn, &data);
    if (data[0] != 0x20 || data[3]) die("CONNACK %d", data[3]);
    conn->in.at += 2 + data[1];
    if (conn->publisher) return;
    add_8(&conn->out, 0x82);
    add_length(&conn->out, 2 + (reorders ? sizeof REORDERS - 1 : five) + 2 + strlen(TOPIC) + 1);
    add_16(&conn->out, 1);
    if (five) add(&conn->out, reorders ? REORDERS : "", reorders ? sizeof REORDERS - 1 : 1);
    add_string(&conn->out, TOPIC);
    add_8(&conn->out, 1);
}

static void plain(struct conn *conn) { five = false, hello(conn); }
static void newer(struct conn *conn) { five = true, hello(conn); }
static void reordering(struct conn *conn) { five = reorders = true, hello(conn); }
static void nothing(struct conn *conn) { (void)conn; }

static void put(struct conn *conn, const char *payload, size_t length) {
    static const char names[] = "\x02\x00\x00\x0e\x10\x26\x00\x0fmqmesh-priority\x00\x01";
    static const char more[] = "\x26\x00\x04shop\x00\x05porto\x03\x00\x0atext/plain";
    size_t properties = five ? sizeof names - 1 + 1 + sizeof more - 1 : 0;
    add_8(&conn->out, 0x32);
    add_length(&conn->out, 2 + strlen(TOPIC) + 2 + five + properties + length);
    add_string(&conn->out, TOPIC);
    add_16(&conn->out, conn->put % 65535 + 1);
    if (five) {
        add_8(&conn->out, properties);
        add(&conn->out, names, sizeof names - 1);
        add_8(&conn->out, '0' + conn->put % 10);
        add(&conn->out, more, sizeof more - 1);
    }
    add(&conn->out, payload, length);
}

static size_t number(const char *data, size_t have, size_t *value) {
    *value = 0;
    for (size_t at = 0; at < have && at < 4; at++) {
        *value |= (size_t)(data[at] & 127) << 7 * at;
        if (!(data[at] & 128)) return at + 1;
    }
    return 0;
}

static void message(struct conn *conn, const char *body, size_t length) {
    size_t at = 2 + ((uint8_t)body[0] << 8 | (uint8_t)body[1]), skip = 0;
    const char *name = body + at;
    at += 2;
    if (five) at += number(body + at, length - at, &skip), at += skip;
    delivered(conn, body + at, length - at, name, 2);
}

static void take(struct conn *conn) {
    char *data;
    size_t have, length, used;
    while ((have = here(conn, &data)) > 1 && (used = number(data + 1, have - 1, &length)) && have >= 1 + used + length) {
        const char *body = data + 1 + used;
        if ((data[0] & 0xf0) == 0x30) message(conn, body, length);
        else if (data[0] == 0x40 && length > 2 && body[2] & 0x80) die("PUBACK 0x%02x", (uint8_t)body[2]);
        else if (data[0] == 0x40) confirmed(conn, 1);
        else if ((uint8_t)data[0] != 0x90 || body[length - 1] != 1) die("a packet of type 0x%02x", (uint8_t)data[0]);
        conn->in.at += 1 + used + length;
    }
}

static void acknowledge(struct conn *conn) {
    for (size_t at = 0, length; at < conn->token_count; at++) {
        const char *name = token(conn, at, &length);
        add(&conn->out, (char[]){0x40, 2, name[0], name[1]}, 4);
    }
}

struct protocol mqtt = {"mqtt", 1, false, nothing, plain, put, nothing, take, acknowledge, nothing};
struct protocol mqtt_properties = {"mqtt-properties", 1, false, nothing, newer, put, nothing, take, acknowledge, nothing};
struct protocol mqtt_reorders = {"mqtt-reorders", 1, false, nothing, reordering, put, nothing, take, acknowledge, nothing};
