/* Threads that stay awake for many operations, so that no operation pays for waking them: one leads, the others follow it
   from operation to operation. */
#ifndef SLUICE_CREW_H
#define SLUICE_CREW_H

#include <stdint.h>

typedef void (*item_fn)(const void *call, int64_t item);

/* Each thread takes a stretch of the items, or all take them by turns. */
typedef enum { IN_STRETCHES, BY_TURNS } item_order;

/* Returns whether this thread leads a crew. */
int sluice_leads_crew(void);

/* Runs all items with the crew that this thread leads, or else with a new one. It does not wait for threads that have taken
   no item. */
void sluice_run_with_crew(item_order order, int64_t num_items, item_fn run_item, const void *call);

#endif
