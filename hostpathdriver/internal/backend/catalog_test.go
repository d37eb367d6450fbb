package backend

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func filled(n int) *catalog[*volume.Volume] {
	c := newCatalog[*volume.Volume](volumeKind)
	for i := range n {
		c.put(numbered(i))
	}
	return c
}

// pageOf asks for one page of volumes.
func pageOf(c *catalog[*volume.Volume], req volume.ListRequest) (*volume.Page, error) {
	list, next, err := c.page(req, nil)
	return &volume.Page{Volumes: list, Next: next}, err
}

func numbered(i int) *volume.Volume {
	return &volume.Volume{ID: volume.ID(fmt.Sprintf("id-%d", i)), Name: fmt.Sprintf("name-%d", i)}
}

func ids(volumes []*volume.Volume) []volume.ID {
	list := []volume.ID{}
	for _, v := range volumes {
		list = append(list, v.ID)
	}
	return list
}

// TestPages walks through all pages. Upstream loses three volumes of five.
func TestPages(t *testing.T) {
	cases := map[string]struct {
		reason string
		count  int
		size   int
		pages  [][]volume.ID
	}{
		"Empty":      {reason: "nothing is one empty page", size: 2, pages: [][]volume.ID{{}}},
		"NoLimit":    {reason: "zero means all", count: 3, pages: [][]volume.ID{{"id-0", "id-1", "id-2"}}},
		"Exact":      {reason: "no token to an empty last page", count: 4, size: 2, pages: [][]volume.ID{{"id-0", "id-1"}, {"id-2", "id-3"}}},
		"Rest":       {reason: "two of five", count: 5, size: 2, pages: [][]volume.ID{{"id-0", "id-1"}, {"id-2", "id-3"}, {"id-4"}}},
		"Single":     {reason: "one by one", count: 2, size: 1, pages: [][]volume.ID{{"id-0"}, {"id-1"}}},
		"LargerThan": {reason: "all on the first page", count: 2, size: 9, pages: [][]volume.ID{{"id-0", "id-1"}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := filled(tc.count)
			var got [][]volume.ID
			for token := ""; ; {
				page, err := pageOf(c, volume.ListRequest{Token: token, Max: tc.size})
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, ids(page.Volumes))
				if token = page.Next; token == "" {
					break
				}
			}
			if diff := cmp.Diff(tc.pages, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestPagesAreASnapshot changes the catalog between the pages: what was added
// does not appear, what was deleted does not, and deleting the last entry of
// a page does not confuse the next.
func TestPagesAreASnapshot(t *testing.T) {
	c := filled(6)
	first, err := pageOf(c, volume.ListRequest{Max: 2})
	if err != nil {
		t.Fatal(err)
	}
	c.remove(numbered(1))
	c.remove(numbered(4))
	c.put(numbered(7))
	second, err := pageOf(c, volume.ListRequest{Max: 2, Token: first.Next})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		c.remove(numbered(i)) // enough to compact
	}
	third, err := pageOf(c, volume.ListRequest{Max: 2, Token: second.Next})
	if err != nil {
		t.Fatal(err)
	}
	got := [][]volume.ID{ids(first.Volumes), ids(second.Volumes), ids(third.Volumes)}
	want := [][]volume.ID{{"id-0", "id-1"}, {"id-2", "id-3"}, {"id-5"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
	if third.Next != "" {
		t.Errorf("there is a page after the last one: %q", third.Next)
	}
	if again, err := pageOf(c, volume.ListRequest{Max: 2, Token: first.Next}); err != nil || len(again.Volumes) != 2 {
		t.Errorf("a token must serve twice: %v, %v", again, err)
	}
}

func TestBadTokens(t *testing.T) {
	c := filled(5)
	page, err := pageOf(c, volume.ListRequest{Max: 2})
	if err != nil {
		t.Fatal(err)
	}
	encode := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	for name, token := range map[string]string{
		"Word":         "invalid-token",
		"Number":       "3",
		"Negative":     "-5",
		"Cut":          page.Next[:len(page.Next)-1],
		"Longer":       page.Next + "A",
		"OtherProcess": encode("other 5 2"),
		"NoNumbers":    encode(c.instance + " x y"),
		"Backwards":    encode(c.instance + " 2 5"),
		"Future":       encode(c.instance + " 99 2"),
		"NegativePart": encode(c.instance + " 5 -2"),
		"TooFew":       encode(c.instance + " 5"),
		"NotUTF8":      "\xff\xfe",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := pageOf(c, volume.ListRequest{Token: token, Max: 2})
			wantErr(t, "token "+token, err, volume.ErrBadToken)
		})
	}
}

func FuzzDecodeToken(f *testing.F) {
	c := filled(5)
	f.Add(c.encode(position{bound: 5, after: 2}))
	f.Add("invalid-token")
	f.Fuzz(func(t *testing.T, token string) {
		at, err := c.decode(token)
		if err == nil && (at.after > at.bound || at.bound > c.next) {
			t.Errorf("decode(%q) = %+v", token, at)
		}
	})
}

// TestCatalogAgainstAModel does random operations on a catalog and on a plain
// list, and compares what both show.
func TestCatalogAgainstAModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	c := newCatalog[*volume.Volume](volumeKind)
	var model []volume.ID
	for i := range 3000 {
		if len(model) == 0 || random.IntN(5) < 3 {
			c.put(numbered(i))
			model = append(model, numbered(i).ID)
		} else {
			at := random.IntN(len(model))
			v, err := c.get(model[at])
			if err != nil {
				t.Fatal(err)
			}
			c.remove(v)
			model = append(model[:at:at], model[at+1:]...)
		}
		if i%100 != 0 {
			continue
		}
		page, err := pageOf(c, volume.ListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(append([]volume.ID{}, model...), ids(page.Volumes)); diff != "" {
			t.Fatalf("after %d operations (-want +got):\n%s", i, diff)
		}
		if len(c.order) > 2*len(model)+1 || len(c.byID) != len(model) || len(c.names) != len(model) {
			t.Fatalf("after %d operations: %d entries, %d ids, %d names for %d volumes", i, len(c.order), len(c.byID), len(c.names), len(model))
		}
	}
}

func TestCatalogGivesCopies(t *testing.T) {
	c := newCatalog[*volume.Volume](volumeKind)
	c.put(&volume.Volume{ID: "a", Name: "n", Published: []volume.Publication{{Node: "n1"}}})
	for what, read := range map[string]func() (*volume.Volume, error){
		"get":  func() (*volume.Volume, error) { return c.get("a") },
		"find": func() (*volume.Volume, error) { return c.find("n") },
		"page": func() (*volume.Volume, error) {
			page, err := pageOf(c, volume.ListRequest{})
			return page.Volumes[0], err
		},
	} {
		v, err := read()
		if err != nil {
			t.Fatal(err)
		}
		v.Published[0].Node = "changed"
		if again, err := read(); err != nil || again.Published[0].Node != "n1" {
			t.Errorf("%s hands out its own memory: %v, %v", what, again, err)
		}
	}
}

// BenchmarkCatalog shows that a call costs the same with few and with many
// volumes.
func BenchmarkCatalog(b *testing.B) {
	for _, count := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("CreateDelete/%d", count), func(b *testing.B) {
			c := filled(count)
			extra := numbered(count)
			for b.Loop() {
				c.put(extra)
				c.remove(extra)
			}
		})
		b.Run(fmt.Sprintf("PageOf100/%d", count), func(b *testing.B) {
			c := filled(count)
			for b.Loop() {
				if _, err := pageOf(c, volume.ListRequest{Max: 100}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
