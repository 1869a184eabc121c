"""How questions are put. Training and evaluation share all of them; braces are filled in."""

READ_SIGN = (
    "What is written on the sign?",
    "What does the sign say?",
    "Read the sign.",
    "What text is in the image?",
    "Read the text.",
    "What does it say?",
    "Please read what is written here.",
    "Which text do you see?",
)
READ_PHONE = (
    "What is the phone number?",
    "Which number should I call?",
    "Read the phone number.",
    "What phone number is on the sign?",
    "What is the number on the sign?",
    "Give me the phone number.",
    "Which phone number do you see?",
)
COLOUR = (
    "What colour is the {shape}?",
    "What color is the {shape}?",
    "Which colour does the {shape} have?",
    "Name the colour of the {shape}.",
    "The {shape} has which colour?",
    "Tell me the color of the {shape}.",
    "What is the colour of the {shape}?",
)
SHAPE = (
    "What shape is {colour}?",
    "Which shape is {colour}?",
    "What is the {colour} shape?",
    "Name the {colour} shape.",
    "What is {colour} in the image?",
    "Which {colour} shape do you see?",
    "Tell me which shape is {colour}.",
)
COUNT = (
    "How many {things} are there?",
    "How many {things} do you see?",
    "Count the {things}.",
    "How many {things} are in the image?",
    "What is the number of {things}?",
    "Tell me how many {things} there are.",
    "How many {things} does the picture show?",
)
LOCATE = (
    "Where is the {thing}?",
    "Where do you see the {thing}?",
    "In which part of the image is the {thing}?",
    "Where in the picture is the {thing}?",
    "Tell me where the {thing} is.",
    "What is the position of the {thing}?",
    "Find the {thing}.",
)
HIGHEST = (
    "Which bar is the highest?",
    "Which bar is the tallest?",
    "What is the label of the highest bar?",
    "Which one has the largest value?",
    "Name the tallest bar.",
    "Which label has the highest value?",
)
LOWEST = (
    "Which bar is the lowest?",
    "Which bar is the shortest?",
    "What is the label of the lowest bar?",
    "Which one has the smallest value?",
    "Name the shortest bar.",
    "Which label has the lowest value?",
)
VALUE = (
    "What is the value of {label}?",
    "How high is the bar {label}?",
    "What value does {label} have?",
    "Which value has the bar {label}?",
    "Read the value of {label}.",
    "How much is {label}?",
)
BARS = (
    "How many bars are there?",
    "Count the bars.",
    "How many bars does the chart have?",
    "How many bars do you see?",
    "What is the number of bars?",
    "Tell me how many bars there are.",
)
WHICH_HAS = (
    "Which image has {thing}?",
    "Which image shows {thing}?",
    "In which image do you see {thing}?",
    "Which of the two images has {thing}?",
    "Which picture contains {thing}?",
    "Is {thing} in the first or the second image?",
)
WHICH_HAS_MORE = (
    "Which image has more shapes?",
    "Which image shows more shapes?",
    "In which image are more shapes?",
    "Which of the two images has more shapes?",
    "Which picture contains more shapes?",
    "Are there more shapes in the first or the second image?",
)
WHICH_SAYS = (
    "Which image says {text}?",
    "Which sign says {text}?",
    "In which image do you read {text}?",
    "Which of the two signs says {text}?",
    "Which picture shows the text {text}?",
    "Is {text} on the first or the second sign?",
)
READ_ONE = (
    "What does the {ordinal} sign say?",
    "What is written in the {ordinal} image?",
    "Read the {ordinal} sign.",
    "Read the text of the {ordinal} image.",
    "What text is in the {ordinal} image?",
    "What is written on the {ordinal} sign?",
)
READ_BOTH = (
    "Read both signs.",
    "What do the two signs say?",
    "What is written on the signs?",
    "Read the text of both images.",
    "What do both signs say?",
    "Which texts are in the two images?",
)
DIRECTION = (
    "In which direction does the {shape} move?",
    "Which way does the {shape} move?",
    "Where does the {shape} go?",
    "Which way is the {shape} going?",
    "In what direction is the {shape} moving?",
    "Tell me which way the {shape} moves.",
)
READ_CLIP = (
    "What text appears in the video?",
    "What does the sign in the video say?",
    "Read the sign that appears.",
    "Which text do you see in the video?",
    "What is written in the video?",
    "What text is shown at the end?",
)
