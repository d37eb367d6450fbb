package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// outcomes runs report on what a machine prints, and lists what its events say of tests and packages.
func outcomes(t *testing.T, printed string) (list []string, ok bool, err error) {
	t.Helper()
	var out bytes.Buffer
	ok, err = report(t.Context(), strings.NewReader(printed), &out)
	return actions(t, out.String()), ok, err
}

func actions(t *testing.T, events string) []string {
	t.Helper()
	var list []string
	for line := range strings.Lines(events) {
		var e struct{ Action, Package, Test string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if slices.Contains([]string{"pass", "fail", "skip"}, e.Action) {
			list = append(list, fmt.Sprintf("%s %s.%s", e.Action, strings.TrimSuffix(e.Package, " (virtual machine)"), e.Test))
		}
	}
	return list
}

func TestReport(t *testing.T) {
	const passes = "=== RUN   TestA\n--- PASS: TestA (0.00s)\nPASS\n"
	tests := map[string]struct {
		reason  string
		printed string
		want    []string
		ok      bool
		err     string
	}{
		"Passed": {
			reason:  "two packages, the second without tests that match",
			printed: "@vmtest begin p\n" + passes + "\n@vmtest end 0\n@vmtest begin q\nPASS\n\n@vmtest end 0\n@vmtest done\n",
			want:    []string{"pass p.TestA", "pass p.", "pass q."},
			ok:      true,
		},
		"Failed": {
			reason:  "the next package runs nevertheless",
			printed: "@vmtest begin p\n=== RUN   TestA\n--- FAIL: TestA (0.00s)\nFAIL\n\n@vmtest end 1\n@vmtest begin q\n" + passes + "\n@vmtest end 0\n@vmtest done\n",
			want:    []string{"fail p.TestA", "fail p.", "pass q.TestA", "pass q."},
		},
		"FailedLate": {
			reason:  "a program may fail after its tests, for a leak",
			printed: "@vmtest begin p\n" + passes + "leak\n\n@vmtest end 1\n@vmtest done\n",
			want:    []string{"pass p.TestA", "fail p."},
		},
		"Panic": {
			reason:  "the last line may have no end",
			printed: "@vmtest begin p\n=== RUN   TestA\npanic: x\n@vmtest end 2\n@vmtest done\n",
			want:    []string{"fail p."},
		},
		"Stopped": {
			reason:  "the kernel may die",
			printed: "@vmtest begin p\n=== RUN   TestA\n",
			want:    []string{"fail p."},
			err:     "stopped before its end",
		},
		"Refused": {
			reason:  "what cannot even begin says why",
			printed: "@vmtest failed load xfs: no such thing\n",
			err:     "load xfs: no such thing",
		},
		"Silent": {reason: "a machine that does not start is no success", err: "stopped before its end"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok, err := outcomes(t, tc.printed)
			if !slices.Equal(got, tc.want) || ok != tc.ok {
				t.Errorf("%s: got %q, ok %t, want %q", tc.reason, got, ok, tc.want)
			}
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: got the error %v, want %q", tc.reason, err, tc.err)
			}
		})
	}
}

func TestSkipAll(t *testing.T) {
	var out bytes.Buffer
	if err := skipAll(&out, []string{"p", "q"}, `needs "qemu"`); err != nil {
		t.Fatal(err)
	}
	if got, want := actions(t, out.String()), []string{"skip p.All", "skip q.All"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTail(t *testing.T) {
	for text, want := range map[string]string{"": "", "a": "a", "a\nb\nc": "b\nc"} {
		if got := tail(text, 2); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
