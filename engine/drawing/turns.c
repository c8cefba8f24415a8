#include "engine/drawing/turns.h"

#include "base/limits.h"
#include "base/list.h"
#include "engine/drawing/policy.h"

#include <stdlib.h>
#include <string.h>

void turns_finish(struct turns *turns) {
    free(turns->accounts);
    memset(turns, 0, sizeof(*turns));
}

static struct turns_account *find(const struct turns *turns, uint64_t caller) {
    for (int i = 0; i < turns->count; i++)
        if (turns->accounts[i].caller == caller)
            return &turns->accounts[i];
    return NULL;
}

bool turns_enter(struct turns *turns, uint64_t caller, struct error *err) {
    struct turns_account *account = find(turns, caller);
    if (!account) {
        if (!LIST_ROOM(turns->accounts, turns->count, "a request", err))
            return false;
        account = &turns->accounts[turns->count++];
        *account = (struct turns_account){ .caller = caller, .served = turns->clock };
    }
    if (account->requests++ == 0 && account->served < turns->clock)
        account->served = turns->clock;
    return true;
}

/* Raises the clock to the lowest account of the callers with requests. */
static void catch_up(struct turns *turns) {
    const struct turns_account *least = NULL;
    for (int i = 0; i < turns->count; i++) {
        const struct turns_account *account = &turns->accounts[i];
        if (account->requests > 0 && (!least || account->served < least->served))
            least = account;
    }
    if (!least) { /* no requests left: all accounts start at 0 */
        turns->count = 0;
        turns->clock = 0;
    } else if (least->served > turns->clock) {
        turns->clock = least->served;
    }
}

/* Forgets the accounts of callers without requests, except those ahead of the clock. If more than
 * CALLERS_REMEMBERED_MAX of these remain, forgets the one that is least ahead. */
static void forget(struct turns *turns) {
    int kept = 0, gone = 0;
    for (int i = 0; i < turns->count; i++) {
        const struct turns_account *account = &turns->accounts[i];
        if (account->requests == 0 && account->served <= turns->clock)
            continue;
        gone += account->requests == 0;
        turns->accounts[kept++] = *account;
    }
    turns->count = kept;
    if (gone <= CALLERS_REMEMBERED_MAX)
        return;
    int least = -1;
    for (int i = 0; i < turns->count; i++)
        if (turns->accounts[i].requests == 0 &&
            (least < 0 || turns->accounts[i].served < turns->accounts[least].served))
            least = i;
    turns->accounts[least] = turns->accounts[--turns->count];
}

void turns_leave(struct turns *turns, uint64_t caller, double served) {
    struct turns_account *account = find(turns, caller);
    if (!account)
        return;
    account->requests--;
    account->served += served;
    catch_up(turns);
    forget(turns);
}

void turns_move_clock(struct turns *turns, double work) {
    turns->clock += POLICY_AGEING * work;
}

static int by_caller_and_rank(const void *a, const void *b) {
    const struct turns_request *x = a, *y = b;
    if (x->caller != y->caller)
        return x->caller < y->caller ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* Does not count the work already done for a caller's first request. Counting it would put a
 * request that is nearly done at a disadvantage. */
void turns_take(const struct turns *turns, struct turns_request *requests, int count) {
    qsort(requests, (size_t)count, sizeof(*requests), by_caller_and_rank);
    for (int i = 0, end; i < count; i = end) {
        const struct turns_account *account = find(turns, requests[i].caller);
        double turn = account ? account->served : turns->clock;
        for (end = i + 1; end < count && requests[end].caller == requests[i].caller; end++)
            turn += requests[end].served;
        for (int k = i; k < end; k++)
            requests[k].turn = turn += requests[k].left;
    }
}
