/* This process's own threads, which work while the thread that started them does something else. */
#ifndef SLUICE_TEAM_H
#define SLUICE_TEAM_H

typedef void (*team_fn)(void *data);

/* Takes the team for the caller; returns 0 if another caller has it. */
int sluice_take_team(void);

/* Makes `num_threads` other threads run `work`, each as soon as it wakes up; returns at once. */
void sluice_begin_team(team_fn work, void *data, int num_threads);

/* Lets no more threads begin `work`, waits for those that have begun, and releases the team. */
void sluice_end_team(void);

#endif
