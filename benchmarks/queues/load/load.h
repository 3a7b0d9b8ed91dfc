/* The load generator of queues: publishers and members of one pool, in one thread, over the protocol of the product that is measured.
 *
 *     main.c        connections, the window of unconfirmed messages, the count of every message
 *     mqtt.c ...    one product each: how to connect, to put, to take, to acknowledge
 *
 * A protocol appends bytes to `out` and consumes those of `in`. It tells `confirmed` and `delivered` what it has found there.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {
    char *data;
    size_t length, room, at; /* at: where what is not consumed begins */
};

struct conn {
    int fd, index;
    bool publisher;
    struct bytes in, out;
    uint64_t put, confirmed; /* messages of a publisher */
    struct bytes tokens;     /* what names the messages that are to be acknowledged */
    uint32_t *starts;        /* where each of them begins */
    size_t token_count, token_room;
    uint64_t left, taken;    /* for the protocol */
    bool idle;               /* a member that has found nothing, and asks again soon */
    uint8_t *seen;           /* for the protocol */
};

struct protocol {
    const char *name;
    size_t batch;             /* messages that are put together, if there are so many */
    bool answers;             /* whether acknowledgements are answered: `finished` is told */
    void (*prepare)(struct conn *);
    void (*open)(struct conn *);
    void (*put)(struct conn *, const char *payload, size_t length);
    void (*end_puts)(struct conn *);
    void (*read)(struct conn *);
    void (*acknowledge)(struct conn *);
    void (*ask)(struct conn *); /* an idle member asks again */
};

extern struct protocol mqtt, mqtt_properties, mqtt_reorders, redis, nats, amqp, postgresql;
extern bool at_random;
extern const char *user;

void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
void add(struct bytes *to, const void *data, size_t length);
void add_text(struct bytes *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
void add_8(struct bytes *to, unsigned value);
void add_16(struct bytes *to, unsigned value);
void add_32(struct bytes *to, uint32_t value);
void add_64(struct bytes *to, uint64_t value);
uint32_t get_32(const char *data);
uint64_t get_64(const char *data);
size_t here(struct conn *conn, char **data);  /* bytes that are there and not consumed */
void need(struct conn *conn, size_t length);  /* blocks until so many bytes are there */
void send_all(struct conn *conn);             /* blocks */
char *line(struct conn *conn, size_t *length); /* a line that is there, consumed; NULL: it is not whole */
char *wait_line(struct conn *conn);           /* blocks; the line ends with \0 */
void confirmed(struct conn *conn, uint64_t count);
void delivered(struct conn *conn, const char *payload, size_t length, const void *token, size_t token_length);
void finished(uint64_t count);
const char *token(struct conn *conn, size_t index, size_t *length);
