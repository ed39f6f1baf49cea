/* A program that runs a Python of another version, as far as the library can see. */
#include <kvarn.h>
#include <stdio.h>

int Py_IsInitialized(void) { return 1; }
const char *Py_GetVersion(void) { return "3.99.1 (main)"; }

int main(void)
{
    long result = kvarn_start(NULL);
    return printf("start %ld %s\n", result, kvarn_error()), 0;
}
