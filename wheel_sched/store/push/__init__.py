"""Server push: the server pushes due items to streams or lists in the step that claims them."""
