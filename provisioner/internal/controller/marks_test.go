package controller

import (
	"testing"
	"time"
)

func TestMarks(t *testing.T) {
	var m marks
	first, second := time.Unix(1, 0), time.Unix(2, 0)
	if m.len() > 0 || m.has("a") {
		t.Error("the zero value has marks")
	}
	if got := m.put("a", first); got != first {
		t.Errorf("first mark at %v, want %v", got, first)
	}
	if got := m.put("a", second); got != first {
		t.Errorf("second mark moves the first to %v, want %v", got, first)
	}
	m.drop("b")
	if !m.has("a") || m.len() == 0 {
		t.Error("the mark is lost")
	}
	m.drop("a")
	if m.has("a") || m.len() > 0 {
		t.Error("the mark stays")
	}
}

func TestTable(t *testing.T) {
	var table table[string]
	if _, ok := table.get("a"); ok || table.len() != 0 {
		t.Error("the zero value has values")
	}
	table.put("a", "x")
	table.put("a", "y")
	if got, ok := table.get("a"); !ok || got != "y" || table.len() != 1 {
		t.Errorf("value %q of %d, want the last one of 1", got, table.len())
	}
	for want, found := range map[string]bool{"x": false, "y": true} {
		if got := table.any(func(value string) bool { return value == want }); got != found {
			t.Errorf("any value is %q: %v, want %v", want, got, found)
		}
	}
	if got, ok := table.drop("a"); !ok || got != "y" {
		t.Errorf("the dropped value is %q, want the last one", got)
	}
	if _, ok := table.drop("a"); ok || table.len() != 0 {
		t.Error("the value stays")
	}
}
