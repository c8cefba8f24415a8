#include "server/http/library/refusal.h"

#include "server/http/connections.h"
#include "server/http/library/threads.h"
#include "server/http/respond.h"

#include <stdlib.h>
#include <sys/socket.h>

void refusal_expect_head(struct http_thread *thread, struct exchange *exchange) {
    exchange->next_head = thread->heads;
    if (thread->heads)
        thread->heads->previous_head = exchange;
    thread->heads = exchange;
    exchange->head_is_coming = true;
}

void refusal_head_has_come(struct http_thread *thread, struct exchange *exchange) {
    if (!exchange->head_is_coming)
        return;
    exchange->head_is_coming = false;
    if (exchange->next_head)
        exchange->next_head->previous_head = exchange->previous_head;
    if (exchange->previous_head)
        exchange->previous_head->next_head = exchange->next_head;
    else
        thread->heads = exchange->next_head;
}

/* Returns the status of the queued answer; 0 if there is none. */
static int queued_status(const struct exchange *exchange) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        exchange->http, MHD_CONNECTION_INFO_HTTP_STATUS);
    return info ? (int)info->http_status : 0;
}

struct exchange *refusal_find(const struct http_thread *thread) {
    for (struct exchange *e = thread->heads; e; e = e->next_head)
        if (MHD_get_connection_info(e->http, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE) &&
            queued_status(e) == 0)
            return e;
    return NULL;
}

void refusal_answer(struct exchange *exchange, int status, const struct error *err) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        exchange->http, MHD_CONNECTION_INFO_CONNECTION_FD);
    size_t size;
    char *text = respond_error_text(exchange, status, err, &size);
    if (text && info) {
        /* All earlier answers are in the kernel's buffer. If this one does not fit there, the
         * client is not reading its answers, and this one is dropped. */
        (void)!send(info->connect_fd, text, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        shutdown(info->connect_fd, SHUT_WR);
    }
    if (exchange->connection)
        connections_linger(exchange->server->connections, exchange->connection);
    free(text);
}

void refusal_note(struct exchange *exchange) {
    if (exchange->status == 0)
        exchange->status = queued_status(exchange);
}
