package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// unpack reads a cpio archive: the files by name, each as mode, colon and contents.
func unpack(t *testing.T, data []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	at := 0
	take := func(n int) string {
		if at+n > len(data) {
			t.Fatalf("the archive ends at %d, wanted %d bytes from %d", len(data), n, at)
		}
		taken := string(data[at : at+n])
		at += (n + 3) / 4 * 4
		return taken
	}
	for {
		// Header and name are padded as one.
		var fields [13]int
		if magic := string(data[at : at+6]); magic != "070701" {
			t.Fatalf("at %d: %q", at, magic)
		}
		for i := range fields {
			n, err := strconv.ParseUint(string(data[at+6+8*i:at+14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			fields[i] = int(n)
		}
		size, length := fields[6], fields[11]
		name := take(110 + length)[110:]
		if name[length-1] != 0 {
			t.Fatalf("name %q does not end in zero", name)
		}
		name = name[:length-1]
		if name == "TRAILER!!!" {
			return files
		}
		if _, twice := files[name]; twice {
			t.Errorf("%s is there twice", name)
		}
		files[name] = strconv.FormatInt(int64(fields[1]), 8) + ":" + take(size)
	}
}

func TestArchive(t *testing.T) {
	source := filepath.Join(t.TempDir(), "source")
	if err := os.WriteFile(source, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	a := newArchive(&out)
	for _, err := range []error{
		a.contents("/etc/passwd", []byte("root"), 0o644),
		a.contents("/etc/empty", nil, 0o644),
		a.file("/usr/bin/five", source, 0o755),
		a.file("/usr/bin/five", "/nonexistent", 0o755), // which is there already
		a.contents("/init", []byte("abc"), 0o755),
		a.close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]string{
		"etc": "40755:", "etc/passwd": "100644:root", "etc/empty": "100644:",
		"usr": "40755:", "usr/bin": "40755:", "usr/bin/five": "100755:12345", "init": "100755:abc",
	}
	if got := unpack(t, out.Bytes()); !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTreeOfTestdata(t *testing.T) {
	source := t.TempDir()
	if err := os.MkdirAll(filepath.Join(source, "a/b"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(source, "a/b/c.txt"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	a := newArchive(&out)
	for _, err := range []error{a.tree("/testdata", source), a.tree("/none", filepath.Join(source, "none")), a.close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"testdata", "testdata/a", "testdata/a/b", "testdata/a/b/c.txt"}
	if got := slices.Sorted(maps.Keys(unpack(t, out.Bytes()))); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLibraries(t *testing.T) {
	const printed = `	linux-vdso.so.1 (0x00007ffd3d3f2000)
	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f3b4a000000)
	libmissing.so.1 => not found
	/lib64/ld-linux-x86-64.so.2 (0x00007f3b4a3c5000)
`
	want := []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}
	if got := libraries(printed); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
