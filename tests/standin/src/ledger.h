/* Who holds how much of which card: the file `ledger`, which all processes map, so that one really
 * takes from the other. What a dead process held is free at the next look, as on a real card. */
#pragma once
#include "machine.h"

enum { HOLDERS = 512 };

typedef struct {
    pid_t pid;
    u64 bytes;
} Holding;

/* Take so much of the card for this process; 0, or -1 where less than that is left. */
int take(const Card *card, u64 bytes);
void give_back(const Card *card, u64 bytes);

/* What is left for anybody. */
u64 left_on(const Card *card);

/* The living processes that hold something of the card; how many. */
int holdings(const Card *card, Holding out[HOLDERS]);
