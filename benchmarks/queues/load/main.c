/* load PROTOCOL PORT SECONDS order|random|alone mixed|uniform [USER]
 *
 * Prints `ready`, waits for a line, puts for so many seconds, and prints one JSON object when every message is confirmed, taken and
 * acknowledged. Then it waits for the end of its input, so that the server's processor time can be read while connections are there.
 * alone: one message at a time, and nobody takes it; the time from put to confirmation.
 */
#include "load.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PUBLISHERS = 4, MEMBERS = 4, WINDOW = 2000, PAYLOADS = 4096, LARGEST = 256, MOST = 1 << 27, CHUNK = 1 << 18, TIMES = 1 << 20 };

bool at_random;
const char *user = "";
static struct protocol *protocols[] = {&mqtt, &mqtt_properties, &mqtt_reorders, &redis, &nats, &amqp, &postgresql};
static struct protocol *protocol;
static struct conn conns[PUBLISHERS + MEMBERS];
static int conn_count;
static char payloads[PAYLOADS][LARGEST];
static size_t sizes[PAYLOADS];
static uint8_t *seen; /* a bit for each message */
static uint64_t sent, agreed, taken, acknowledged, again;
static bool alone;
static double times[TIMES];
static uint64_t state = 88172645463325252ull;

void die(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vfprintf(stderr, format, rest);
    va_end(rest);
    fputc('\n', stderr);
    exit(1);
}

static uint64_t chance(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

/* ---- bytes */

static void grow(struct bytes *to, size_t more) {
    if (to->at && to->at == to->length) to->at = to->length = 0;
    if (to->length + more <= to->room) return;
    if (to->at) {
        memmove(to->data, to->data + to->at, to->length - to->at);
        to->length -= to->at, to->at = 0;
    }
    while (to->length + more > to->room) to->room = to->room ? 2 * to->room : 4096;
    if (!(to->data = realloc(to->data, to->room))) die("no memory");
}

void add(struct bytes *to, const void *data, size_t length) {
    grow(to, length);
    memcpy(to->data + to->length, data, length);
    to->length += length;
}

void add_text(struct bytes *to, const char *format, ...) {
    char text[4096];
    va_list rest;
    va_start(rest, format);
    int length = vsnprintf(text, sizeof text, format, rest);
    va_end(rest);
    if (length < 0 || (size_t)length >= sizeof text) die("a text of %d bytes", length);
    add(to, text, length);
}

void add_8(struct bytes *to, unsigned value) { add(to, &(uint8_t){value}, 1); }
void add_16(struct bytes *to, unsigned value) { add(to, &(uint16_t){htons(value)}, 2); }
void add_32(struct bytes *to, uint32_t value) { add(to, &(uint32_t){htonl(value)}, 4); }
void add_64(struct bytes *to, uint64_t value) { add_32(to, value >> 32), add_32(to, value); }

uint32_t get_32(const char *data) {
    uint32_t value;
    memcpy(&value, data, 4);
    return ntohl(value);
}

uint64_t get_64(const char *data) { return (uint64_t)get_32(data) << 32 | get_32(data + 4); }

/* ---- connections */

static void dial(struct conn *conn, int index, bool publisher, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    *conn = (struct conn){.fd = socket(AF_INET, SOCK_STREAM, 0), .index = index, .publisher = publisher};
    if (connect(conn->fd, (void *)&to, sizeof to)) die("port %d: %s", port, strerror(errno));
    setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

static bool receive(struct conn *conn) {
    grow(&conn->in, CHUNK);
    ssize_t length = read(conn->fd, conn->in.data + conn->in.length, CHUNK);
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (length <= 0) die("connection %d has ended: %s", conn->index, length ? strerror(errno) : "by the server");
    conn->in.length += length;
    return true;
}

size_t here(struct conn *conn, char **data) {
    *data = conn->in.data + conn->in.at;
    return conn->in.length - conn->in.at;
}

void need(struct conn *conn, size_t length) {
    while (conn->in.length - conn->in.at < length) receive(conn);
}

char *line(struct conn *conn, size_t *length) {
    char *data, *end;
    size_t have = here(conn, &data);
    if (!have || !(end = memchr(data, '\n', have))) return NULL;
    conn->in.at += end + 1 - data;
    *length = end - data - (end > data && end[-1] == '\r');
    return data;
}

char *wait_line(struct conn *conn) {
    char *found;
    size_t length;
    while (!(found = line(conn, &length))) receive(conn);
    found[length] = 0;
    return found;
}

static void push(struct conn *conn) {
    while (conn->out.at < conn->out.length) {
        ssize_t length = write(conn->fd, conn->out.data + conn->out.at, conn->out.length - conn->out.at);
        if (length < 0 && errno == EAGAIN) return;
        if (length < 0) die("connection %d: %s", conn->index, strerror(errno));
        conn->out.at += length;
    }
}

void send_all(struct conn *conn) {
    while (conn->out.at < conn->out.length) push(conn);
}

/* ---- what is counted */

void confirmed(struct conn *conn, uint64_t count) { conn->confirmed += count, agreed += count; }
void finished(uint64_t count) { acknowledged += count; }

void delivered(struct conn *conn, const char *payload, size_t length, const void *name, size_t name_length) {
    uint64_t number = strtoull(payload, NULL, 10);
    const char *kept = payloads[number % PAYLOADS];
    if (length != sizes[number % PAYLOADS] || number >= sent || memcmp(payload + 16, kept + 16, length - 16)) die("a message is altered");
    if (seen[number / 8] & 1 << number % 8) again++;
    seen[number / 8] |= 1 << number % 8;
    taken++;
    if (conn->token_count == conn->token_room) {
        conn->token_room = conn->token_room ? 2 * conn->token_room : 1024;
        conn->starts = realloc(conn->starts, (conn->token_room + 1) * sizeof *conn->starts);
    }
    conn->starts[conn->token_count++] = conn->tokens.length;
    add(&conn->tokens, &(uint16_t){name_length}, 2);
    add(&conn->tokens, name, name_length);
}

const char *token(struct conn *conn, size_t index, size_t *length) {
    const char *at = conn->tokens.data + conn->starts[index];
    uint16_t size;
    memcpy(&size, at, 2);
    *length = size;
    return at + 2;
}

static void answer(struct conn *conn) {
    if (!conn->token_count) return;
    if (at_random)
        for (size_t at = conn->token_count - 1; at > 0; at--) {
            size_t other = chance() % (at + 1);
            uint32_t kept = conn->starts[at];
            conn->starts[at] = conn->starts[other], conn->starts[other] = kept;
        }
    protocol->acknowledge(conn);
    if (!protocol->answers) acknowledged += conn->token_count;
    conn->token_count = 0;
    conn->tokens.length = conn->tokens.at = 0;
}

/* ---- the run */

static void put_some(struct conn *conn, bool open) {
    uint64_t window = alone ? 1 : WINDOW / PUBLISHERS;
    uint64_t room = window - (conn->put - conn->confirmed);
    if (!open || room < (protocol->batch < window ? protocol->batch : window)) return;
    for (; room; room--) {
        char *payload = payloads[sent % PAYLOADS];
        int length = sprintf(payload, "%llu", (unsigned long long)sent);
        payload[length] = ' ';
        protocol->put(conn, payload, sizes[sent % PAYLOADS]);
        conn->put++;
        if (++sent >= MOST) die("more than %d messages", MOST);
    }
    protocol->end_puts(conn);
}

static void turn(void) {
    struct pollfd polled[PUBLISHERS + MEMBERS];
    bool idle = false;
    for (int at = 0; at < conn_count; at++) {
        struct conn *conn = &conns[at];
        push(conn);
        polled[at] = (struct pollfd){conn->fd, POLLIN | (conn->out.at < conn->out.length ? POLLOUT : 0), 0};
        idle |= conn->idle;
    }
    int ready = poll(polled, conn_count, idle ? 1 : 20000);
    if (ready < 0) die("poll: %s", strerror(errno));
    if (!ready && !idle) die("nothing for 20 s: put %lu, confirmed %lu, taken %lu, acknowledged %lu", sent, agreed, taken, acknowledged);
    for (int at = 0; at < conn_count; at++) {
        struct conn *conn = &conns[at];
        if (!ready && conn->idle) conn->idle = false, protocol->ask(conn);
        if (!(polled[at].revents & ~POLLOUT) || !receive(conn)) continue;
        protocol->read(conn);
        answer(conn);
    }
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double work(double seconds) {
    double begin = now(), asked = begin;
    uint64_t count = 0;
    for (;;) {
        double at = now();
        bool open = at < begin + seconds;
        if (alone && count < agreed && count < TIMES) times[count++] = at - asked;
        if (alone) asked = at;
        if (!open && agreed == sent && (alone || acknowledged == sent)) break;
        for (int each = 0; each < conn_count; each++)
            if (conns[each].publisher) put_some(&conns[each], open);
        turn();
    }
    qsort(times, count, sizeof *times, by_size);
    return now() - begin;
}

static void make_payloads(bool uniform) {
    for (int at = 0; at < PAYLOADS; at++) {
        sizes[at] = uniform ? 160 : 64 + chance() % 193;
        for (size_t byte = 0; byte < sizes[at]; byte++) payloads[at][byte] = byte < 16 ? ' ' : 33 + chance() % 90;
    }
}

static void open_all(int port) {
    for (int at = 0; at < (alone ? 1 : PUBLISHERS + MEMBERS); at++) {
        struct conn *conn = &conns[conn_count++];
        dial(conn, at, at < PUBLISHERS, port);
        if (!at) protocol->prepare(conn);
        protocol->open(conn);
        send_all(conn);
    }
    for (int at = 0; at < conn_count; at++) fcntl(conns[at].fd, F_SETFL, O_NONBLOCK);
}

int main(int count, char **words) {
    if (count < 6) die("usage: load PROTOCOL PORT SECONDS order|random|alone mixed|uniform [USER]");
    for (size_t at = 0; at < sizeof protocols / sizeof *protocols; at++)
        if (!strcmp(protocols[at]->name, words[1])) protocol = protocols[at];
    if (!protocol) die("no protocol is called %s", words[1]);
    at_random = !strcmp(words[4], "random"), alone = !strcmp(words[4], "alone");
    if (count > 6) user = words[6];
    if (!(seen = calloc(MOST / 8, 1))) die("no memory");
    make_payloads(!strcmp(words[5], "uniform"));
    open_all(atoi(words[2]));
    printf("ready\n"), fflush(stdout);
    if (getchar() == EOF) return 1;
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    double seconds = work(atof(words[3]));
    getrusage(RUSAGE_SELF, &after);
    double own = after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec
        + (after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_stime.tv_usec) / 1e6;
    uint64_t lost = 0;
    for (uint64_t at = 0; !alone && at < sent; at++) lost += !(seen[at / 8] & 1 << at % 8);
    printf("{\"messages\": %lu, \"seconds\": %f, \"lost\": %lu, \"again\": %lu, \"generator\": %f, \"p50\": %.9f, \"p99\": %.9f}\n", sent,
           seconds, lost, again, own, alone ? times[agreed / 2] : 0, alone ? times[agreed * 99 / 100] : 0);
    fflush(stdout);
    while (getchar() != EOF) continue;
    return 0;
}
